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
const VERSION: &str = "1";

/// Returns whether the index at `path` is unchanged since it was sealed, and removes the seal.
pub(super) fn broken(seal: &Path, path: &Path) -> bool {
    let text = files::read_if_there(seal).ok().flatten();
    let holds = text.is_some_and(|text| digest(path).is_ok_and(|digest| text == line(&digest)));
    // A seal that cannot be removed could match later files by mistake.
    let removed = files::remove_any(seal).and_then(|()| seal.parent().map_or(Ok(()), files::sync_folder));
    holds && removed.is_ok()
}

/// Seals the index at `path`, which is closed. `temporary` is a file on the same disk.
pub(super) fn set(seal: &Path, path: &Path, temporary: &Path) -> Result<(), Error> {
    let digest = digest(path).map_err(|e| Error::io("read the index in", path, e))?;
    files::write_synced(temporary, line(&digest).as_bytes())?;
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
