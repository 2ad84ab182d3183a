//! Blobs that a model shares with other models.

use std::cmp::Reverse;
use std::collections::HashMap;

use content::Digest;
use content::operation::Result;
use library::{Library, Model, shown};

/// Maximum number of models that are listed for a blob; further models are only counted.
const NAMED: usize = 8;

/// The blobs that a model shares with other models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Models that share blobs with it, the most shared bytes first.
    pub models: Vec<SharingModel>,
    /// Its shared blobs, in the order of its layers.
    pub blobs: Vec<SharedBlob>,
}

/// A model that shares blobs with another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingModel {
    /// Name of the model, as users write it.
    pub name: String,
    /// Number of shared blobs.
    pub blobs: u64,
    /// Bytes of the shared blobs.
    pub bytes: u64,
}

/// A blob that several models have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBlob {
    /// Digest of the blob.
    pub digest: Digest,
    /// Number of other models that have the blob.
    pub models: u64,
    /// Some of these models, as indices into the list of models.
    pub some: Vec<usize>,
}

/// Finds the other models that share blobs with a model.
///
/// # Errors
/// The model's documents cannot be read.
pub fn sharing(library: &Library, model: &Model) -> Result<Sharing> {
    let mut sizes: Vec<(Digest, u64)> = Vec::new();
    let mut place_of: HashMap<Digest, usize> = HashMap::new();
    for need in library.needs(model.manifest.digest())? {
        let (digest, size) = (need.descriptor.digest, need.descriptor.size);
        place_of.entry(digest).or_insert_with(|| {
            sizes.push((digest, size));
            sizes.len() - 1
        });
    }
    let mut models: Vec<(SharingModel, Vec<usize>)> = Vec::new();
    for tag in library.names().list() {
        let name = shown(&tag.name).unwrap_or(tag.name);
        if name == model.name {
            continue;
        }
        // A model that cannot be read must not hide the rest.
        let Ok(needs) = library.needs(&tag.digest) else { continue };
        let mut places: Vec<usize> =
            needs.iter().filter_map(|need| place_of.get(&need.descriptor.digest).copied()).collect();
        places.sort_unstable();
        places.dedup();
        if !places.is_empty() {
            let bytes = places.iter().map(|place| sizes[*place].1).sum();
            models.push((SharingModel { name, blobs: places.len() as u64, bytes }, places));
        }
    }
    models.sort_by(|(a, _), (b, _)| (Reverse(a.bytes), &a.name).cmp(&(Reverse(b.bytes), &b.name)));
    let mut blobs: Vec<SharedBlob> =
        sizes.iter().map(|(digest, _)| SharedBlob { digest: *digest, models: 0, some: Vec::new() }).collect();
    for (index, (_, places)) in models.iter().enumerate() {
        for place in places {
            let blob = &mut blobs[*place];
            blob.models += 1;
            if blob.some.len() < NAMED {
                blob.some.push(index);
            }
        }
    }
    blobs.retain(|blob| blob.models > 0);
    Ok(Sharing { models: models.into_iter().map(|(model, _)| model).collect(), blobs })
}
