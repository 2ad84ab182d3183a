//! The version of the store's format: a number in the file `version`. A store without this file has
//! version 1, as Lode 0.1 made it.
//!
//! The version changes if an older program would misread or damage a newer store. Pure additions do
//! not change it.

use std::path::Path;

use crate::{Error, files};

/// The format version that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Checks that a store can be opened, before anything in it is touched. Returns whether the version
/// file is missing and must be written.
///
/// # Errors
/// [`Error::Newer`], [`Error::Damaged`].
pub(crate) fn check(home: &Path, file: &Path) -> Result<bool, Error> {
    let Some(text) = files::read_if_there(file)? else { return Ok(true) };
    let shown: String = text.trim().chars().take(40).collect();
    let Ok(found) = shown.parse::<u32>() else {
        let reason = format!("found `{shown}`, expected the version of the store's format, such as {FORMAT_VERSION}");
        return Err(Error::Damaged { path: file.to_owned(), reason });
    };
    if found > FORMAT_VERSION {
        return Err(Error::Newer { home: home.to_owned(), found, known: FORMAT_VERSION });
    }
    Ok(false)
}

/// Writes the version file atomically. `temporary` is a folder on the same disk.
pub(crate) fn write(home: &Path, file: &Path, temporary: &Path) -> Result<(), Error> {
    let new = temporary.join("version");
    files::write_synced(&new, format!("{FORMAT_VERSION}\n").as_bytes())?;
    std::fs::rename(&new, file).map_err(|e| Error::io("rename to", file, e))?;
    files::sync_folder(home)
}
