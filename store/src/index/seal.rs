//! The seal of the index: a digest of its files. It is written when the index is closed and removed
//! when it is opened.
//!
//! sled trusts its files: damaged ones can make it panic, loop or allocate any amount of memory. So
//! it only gets files that are unchanged since it closed them. Without a seal, as after a crash,
//! the index is recreated; it holds nothing that is known only from it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use content::{Algorithm, Digest, Hasher};

use crate::{Error, files};

/// Must change when this version must not read an older index.
const VERSION: &str = "2";

/// A seal that was removed from the disk.
#[derive(Debug)]
pub(super) struct Seal(String);

impl Seal {
    /// Whether the index at `path` is unchanged since it was sealed. Reads all of its files.
    pub(super) fn holds(&self, path: &Path) -> bool {
        digest(path).is_ok_and(|digest| self.0 == line(&digest))
    }

    /// Puts the seal back, if the index was not opened since.
    pub(super) fn put_back(&self, seal: &Path, temporary: &Path) -> Result<(), Error> {
        write(seal, temporary, &self.0)
    }
}

/// Takes the seal from the disk, if there is one of this version.
pub(super) fn take(seal: &Path) -> Option<Seal> {
    let text = files::read_if_there(seal).ok().flatten();
    // A seal that cannot be removed could match later files by mistake.
    let removed = files::remove_any(seal).and_then(|()| seal.parent().map_or(Ok(()), files::sync_folder));
    removed.ok()?;
    text.filter(|text| text.starts_with(&format!("{VERSION} "))).map(Seal)
}

/// Seals the index at `path`, which is closed. `temporary` is a file on the same disk.
pub(super) fn set(seal: &Path, path: &Path, temporary: &Path) -> Result<(), Error> {
    let digest = digest(path).map_err(|e| Error::io("read the index in", path, e))?;
    write(seal, temporary, &line(&digest))
}

fn write(seal: &Path, temporary: &Path, text: &str) -> Result<(), Error> {
    files::write_synced(temporary, text.as_bytes())?;
    std::fs::rename(temporary, seal).map_err(|e| Error::io("write", seal, e))
}

fn line(digest: &Digest) -> String {
    format!("{VERSION} {digest}\n")
}

/// The digest of the names and bytes of all files below a folder.
fn digest(folder: &Path) -> io::Result<Digest> {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    add(folder, &mut hasher)?;
    Ok(hasher.finish())
}

fn add(folder: &Path, hasher: &mut Hasher) -> io::Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut buffer = vec![0; 1 << 18];
    for entry in entries {
        let kind = entry.file_type()?;
        let name = entry.file_name();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_encoded_bytes());
        if kind.is_dir() {
            hasher.update(b"/");
            add(&entry.path(), hasher)?;
            hasher.update(b".");
        } else if kind.is_file() {
            let mut file = File::open(entry.path())?;
            hasher.update(&file.metadata()?.len().to_le_bytes());
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    n => hasher.update(&buffer[..n]),
                }
            }
        } else {
            return Err(io::Error::other("it is neither a file nor a folder"));
        }
    }
    Ok(())
}
