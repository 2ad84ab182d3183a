//! Replaces a file of secrets atomically. Only its owner can ever read it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::client::Error;

/// Replaces the file at `path` by `bytes`, durably. If `path` is a link, its target is replaced.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { operation: "write the logins to", path: path.to_owned(), source };
    let target = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        found => found.map_err(failed)?,
    };
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let temporary = temporary(folder);
    let written = write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &target));
    if let Err(error) = written {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
        return Err(failed(error));
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

fn temporary(folder: &Path) -> PathBuf {
    folder.join(format!(".logins-{:016x}.tmp", rand::random::<u64>()))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
