//! The size of repositories, for quotas.
//!
//! A repository has the bytes of the blobs of its manifests; a blob counts once. The size is added
//! up when a manifest is pushed to a repository with a quota, from its manifests, so that several
//! servers over one storage agree. Two pushes at the same time may together exceed the quota.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use content::text::size;
use content::{Descriptor, Digest};
use futures_util::{StreamExt, TryStreamExt};
use manifests::Document;

use super::refusal::ErrorReply;
use super::storage::{Repository, Storage};
use crate::ErrorCode;

/// Number of manifests that are read at a time.
const READS: usize = 16;
/// Maximum number of kept sizes of blobs, about 40 bytes each.
const MOST: usize = 1_000_000;

/// The sizes of the blobs of a manifest.
type BlobSizes = Arc<[(Digest, u64)]>;

/// The sizes of blobs of manifests that were read already. The content of a digest never changes.
#[derive(Debug, Default)]
pub(super) struct KnownSizes(Mutex<SizeTable>);

#[derive(Debug, Default)]
struct SizeTable {
    manifests: HashMap<Digest, BlobSizes>,
    entries: usize,
}

impl KnownSizes {
    fn get(&self, manifest: &Digest) -> Option<BlobSizes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).manifests.get(manifest).cloned()
    }

    fn insert(&self, manifest: Digest, sizes: &BlobSizes) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.entries + sizes.len() >= MOST {
            *known = SizeTable::default();
        }
        if known.manifests.insert(manifest, sizes.clone()).is_none() {
            known.entries += sizes.len() + 1;
        }
    }
}

fn sizes(document: &Document) -> BlobSizes {
    let Document::Manifest(manifest) = document else { return BlobSizes::default() };
    let layers = manifest.layers().iter().map(|layer| &layer.descriptor);
    layers.chain([manifest.config()]).map(|Descriptor { digest, size, .. }| (*digest, *size)).collect()
}

/// Checks whether a repository with a new manifest stays within its quota.
///
/// # Errors
/// 403 if it does not; the message names quota and sizes.
pub(super) async fn ensure_within<S: Storage>(
    storage: &S,
    known: &KnownSizes,
    repository: &Repository,
    new: &Document,
    quota: u64,
) -> Result<(), ErrorReply> {
    let manifests = storage.listed_manifests(repository).await?;
    let mut blobs: HashMap<Digest, u64> = HashMap::new();
    let mut reads = futures_util::stream::iter(manifests)
        .map(|manifest| of_manifest(storage, known, repository, manifest.digest))
        .buffer_unordered(READS);
    while let Some(sizes) = reads.try_next().await? {
        blobs.extend(sizes.iter().copied());
    }
    let sum = |blobs: &HashMap<Digest, u64>| blobs.values().fold(0, |sum: u64, size| sum.saturating_add(*size));
    let before = sum(&blobs);
    blobs.extend(sizes(new).iter().copied());
    let after = sum(&blobs);
    // A push that adds nothing is allowed, although the quota may have been lowered.
    if after <= quota || after == before {
        return Ok(());
    }
    let message = format!(
        "`{repository}` would have {}, its quota is {}; remove manifests that are not needed",
        size(after),
        size(quota)
    );
    Err(ErrorReply::with_status(StatusCode::FORBIDDEN, ErrorCode::Denied, message))
}

async fn of_manifest<S: Storage>(
    storage: &S,
    known: &KnownSizes,
    repository: &Repository,
    manifest: Digest,
) -> Result<BlobSizes, ErrorReply> {
    if let Some(sizes) = known.get(&manifest) {
        return Ok(sizes);
    }
    // It may have been deleted meanwhile.
    let Some(raw) = storage.read_manifest(repository, &manifest).await? else { return Ok(BlobSizes::default()) };
    let document = Document::parse(&raw).map_err(|e| content::Error::Other(Box::new(e)))?;
    let sizes = sizes(&document);
    known.insert(manifest, &sizes);
    Ok(sizes)
}
