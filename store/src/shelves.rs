//! Walks over the folders of blobs, and of the entries that are named like blobs:
//! `sha256/ab/ab12…`.

use std::fs::DirEntry;
use std::path::Path;

use content::Digest;

use crate::{Error, files};

/// Passes the digests of all blobs or entries below a folder to `each`, shelf by shelf. Returns the
/// errors of folders that cannot be read.
pub(crate) fn each_in_shelves(blobs: &Path, mut each: impl FnMut(Digest)) -> Vec<Error> {
    let mut unreadable = Vec::new();
    let mut listed = |folder: &Path| match files::entries_if_there(folder) {
        Ok(entries) => entries,
        Err(error) => {
            unreadable.push(error);
            Vec::new()
        }
    };
    for algorithm in folders(listed(blobs)) {
        for shelf in folders(listed(&algorithm.path())) {
            listed(&shelf.path()).iter().filter_map(|blob| named(&algorithm, blob)).for_each(&mut each);
        }
    }
    unreadable
}

/// Whether a blob or entry below a folder fulfils a condition; the search ends at the first.
///
/// # Errors
/// A folder cannot be read.
pub(crate) fn any_in_shelves(blobs: &Path, is_it: impl Fn(&Digest) -> bool) -> Result<bool, Error> {
    for algorithm in folders(files::entries_if_there(blobs)?) {
        for shelf in folders(files::entries_if_there(&algorithm.path())?) {
            let blobs = files::entries_if_there(&shelf.path())?;
            if blobs.iter().filter_map(|blob| named(&algorithm, blob)).any(|digest| is_it(&digest)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The digest of a file below the folder of its hash function.
fn named(algorithm: &DirEntry, blob: &DirEntry) -> Option<Digest> {
    format!("{}:{}", algorithm.file_name().display(), blob.file_name().display()).parse().ok()
}

/// The entries that are folders or may be. Listing an entry that is no folder reports the error.
fn folders(entries: Vec<DirEntry>) -> impl Iterator<Item = DirEntry> {
    entries.into_iter().filter(|entry| files::is_folder(entry).unwrap_or(true))
}
