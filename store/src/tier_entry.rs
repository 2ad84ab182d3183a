//! The files of entries of the tier: a size, a line feed, and the first bytes of a blob.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::SystemTime;

use crate::Error;

/// Maximum number of the first bytes of a blob in an entry.
pub const MAX_HEAD: u64 = 1 << 20;

/// The folder of an entry.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().expect("invariant: files of the tier are below the folder of the store")
}

pub(crate) fn set_time(path: &Path, time: SystemTime) -> Result<(), Error> {
    let set = OpenOptions::new().write(true).open(path).and_then(|file| file.set_modified(time));
    set.map_err(|e| Error::io("note the time in", path, e))
}

pub(crate) fn move_if_there(from: &Path, to: &Path) -> Result<(), Error> {
    match fs::rename(from, to) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("move", from, e)),
        _ => Ok(()),
    }
}

/// Reads the size in an entry, and with `has_head` the first bytes of the blob; `None` if there is
/// no entry.
pub(crate) fn read(path: &Path, has_head: bool) -> Result<Option<(u64, Vec<u8>)>, Error> {
    let failed = |e| Error::io("read", path, e);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut reader = BufReader::with_capacity(4096, file);
    let mut line = String::new();
    // The longest size has 20 digits.
    reader.by_ref().take(21).read_line(&mut line).map_err(failed)?;
    let size = line.strip_suffix('\n').and_then(|line| line.parse().ok());
    let size = size.ok_or_else(|| Error::Damaged {
        path: path.to_owned(),
        reason: "it does not begin with a size; remove the file, then `lode repair` fetches the blob again".to_owned(),
    })?;
    let mut head = Vec::new();
    if has_head {
        reader.take(MAX_HEAD).read_to_end(&mut head).map_err(failed)?;
    }
    Ok(Some((size, head)))
}
