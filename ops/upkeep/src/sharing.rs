//! What a model has in common with others.

use std::cmp::Reverse;
use std::collections::HashMap;

use anyhow::Result;
use content::Digest;
use library::{Library, Model, shown};

/// How many models are named for a blob. The others are counted.
const NAMED: usize = 8;

/// What a model has in common with others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Those that have blobs of it, the most bytes first.
    pub models: Vec<SharingModel>,
    /// Its blobs that others have, in the order of its layers.
    pub blobs: Vec<SharedBlob>,
}

/// A model that has blobs of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingModel {
    /// As people write it.
    pub name: String,
    /// How many both have.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A blob that several models have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBlob {
    /// Which.
    pub digest: Digest,
    /// How many others have it.
    pub models: u64,
    /// Some of them: places in the list of models.
    pub some: Vec<usize>,
}

/// Looks which other names have blobs of a model.
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
    for tag in library.store.tags() {
        let name = shown(&tag.name).unwrap_or(tag.name);
        if name == model.name {
            continue;
        }
        // One that cannot be read must not hide the others.
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
