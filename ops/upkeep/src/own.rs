//! Copies the tensors of an adopted model into the store, which then no longer needs the files that
//! they lie in.

use content::Observer;
use content::operation::{Context, Result};
use content::{Amount, Digest};
use library::{Library, ensure_wanted};
use manifests::ModelRef;

/// Copies every blob of the model that lies in another file. Returns the blobs that were copied.
///
/// # Errors
/// The model does not exist, a file was changed or lost, the disk has no room, or the caller has
/// canceled. Blobs that were copied by then stay.
pub fn own(library: &Library, model: &ModelRef, observer: &dyn Observer) -> Result<Amount> {
    let model = library.find(model)?;
    let mut adopted: Vec<(Digest, u64)> = Vec::new();
    for need in library.needs(model.manifest.digest())? {
        let blob = need.descriptor;
        let is_file = library.blobs().size_on_disk(&blob.digest)?.is_some();
        if !is_file && (library.blobs().extents(&blob.digest)?).is_some() {
            adopted.push((blob.digest, blob.size));
        }
    }
    let total = adopted.iter().map(|(_, size)| size).sum();
    library.ensure_room(total, &format!("a copy of `{}`", model.name))?;
    let (_held, mut copied) = (library.hold(adopted.iter().map(|(digest, _)| *digest).collect()), Amount::default());
    for (digest, size) in adopted {
        ensure_wanted(observer)?;
        let was_copied = library.blobs().own(&digest);
        if was_copied.with_context(|| format!("cannot copy blob `{digest}` of `{}`", model.name))? {
            copied += Amount::of_blob(size);
        }
        observer.bytes(copied.bytes, total);
    }
    Ok(copied)
}
