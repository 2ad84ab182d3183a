//! Adds a projector that the user named to the files of a model.

use crate::inventory::{begins_with, is_projector};
use crate::{Error, NamedFile};

/// Adds the file of a projector to those of a GGUF model, in place of other projectors among them.
/// Files get names by which imports recognize them, and which no other file has.
///
/// # Errors
/// [`Error::Source`] if it is not one file with a projector.
pub fn add_projector(files: &mut Vec<NamedFile>, projector: Vec<NamedFile>) -> Result<(), Error> {
    let names = || projector.iter().map(|file| file.source.name()).collect::<Vec<_>>().join("`, `");
    let is_one = |file: &NamedFile| is_projector(file);
    let found = match projector.as_slice() {
        [one] => is_one(one)?,
        _ => false,
    };
    if !found {
        return Err(Error::Source(format!("`{}` is no projector (mmproj) in one GGUF file", names())));
    }
    let mut kept = Vec::with_capacity(files.len() + 1);
    for mut file in files.drain(..) {
        if !begins_with(&file, *b"GGUF")? {
            kept.push(file);
        } else if !is_projector(&file)? {
            with_extension(&mut file);
            kept.push(file);
        }
    }
    for mut file in projector {
        with_extension(&mut file);
        while kept.iter().any(|other| other.name == file.name) {
            file.name = format!("mmproj-{}", file.name);
        }
        kept.push(file);
    }
    *files = kept;
    Ok(())
}

/// Names a GGUF file as one: the blobs of other stores have no extension.
fn with_extension(file: &mut NamedFile) {
    if !file.name.to_ascii_lowercase().ends_with(".gguf") {
        file.name.push_str(".gguf");
    }
}
