//! Copies a model into the store, whose tensors lie in other files, or which is in a root. The
//! store then no longer needs those files, and the root.

use content::Observer;
use content::operation::{Context, Result};
use content::{Amount, Digest};
use library::{Library, ensure_wanted};
use manifests::ModelRef;

/// Copies every blob of the model that lies in another file or in a root, and gives the model its
/// name in the store. Returns the blobs that were copied.
///
/// # Errors
/// The model does not exist, a file was changed or lost, the disk has no room, or the caller has
/// canceled. Blobs that were copied by then stay.
pub fn own(library: &Library, model: &ModelRef, observer: &dyn Observer) -> Result<Amount> {
    let (tag, model) = (library.find_tag(model)?, library.find(model)?);
    let mut elsewhere: Vec<(Digest, u64)> = Vec::new();
    for need in library.needs(model.manifest.digest())? {
        let blob = need.descriptor;
        let is_elsewhere = library.blobs().size_on_disk(&blob.digest)?.is_none()
            && (library.blobs().extents(&blob.digest)?.is_some() || library.blobs().is_only_in_root(&blob.digest));
        if is_elsewhere {
            elsewhere.push((blob.digest, blob.size));
        }
    }
    let total = elsewhere.iter().map(|(_, size)| size).sum();
    let _guard = library.guard();
    library.ensure_room(total, &format!("a copy of `{}`", model.name))?;
    let (_held, mut copied) = (library.hold(elsewhere.iter().map(|(digest, _)| *digest).collect()), Amount::default());
    for (digest, size) in elsewhere {
        ensure_wanted(observer)?;
        let was_copied = library.blobs().copy_here(&digest);
        if was_copied.with_context(|| format!("cannot copy blob `{digest}` of `{}`", model.name))? {
            copied += Amount::of_blob(size);
        }
        observer.bytes(copied.bytes, total);
    }
    if let Some(tag) = tag.filter(|tag| library.names().root_of(&tag.name).is_some()) {
        library.names().set(&tag.name, &tag.digest)?;
    }
    Ok(copied)
}
