//! Comparing the tier with the store's list of it.

use std::collections::HashSet;

use content::operation::Result;
use content::{Descriptor, Digest};
use futures_util::TryStreamExt;
use library::Library;

use crate::blocking::blocking;
use crate::tier::Tier;

/// The difference between the tier and the store's list of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Number of blobs of the tier that were added to the list: the store needs them.
    pub found: u64,
    /// Number of blobs that were removed from the tier: nothing refers to them.
    pub removed: u64,
    /// Blobs of the list that the tier does not have, and the disk neither.
    pub lost: Vec<Digest>,
}

impl Tier {
    /// Lists the tier and repairs differences. A process that was killed after it put a blob, and
    /// before it recorded that, leaves a blob that the list lacks.
    ///
    /// Memory: 8 bytes for each blob of the tier.
    ///
    /// # Errors
    /// The tier or the store cannot be read.
    pub async fn reconcile(&self) -> Result<Reconciled> {
        let _changing = self.0.changing.write().await;
        self.remove_unneeded().await?;
        let library = self.0.library.clone();
        let needed = self.blocking(needed).await?;
        let place = self.place().await?;
        let (mut report, mut there) = (Reconciled::default(), HashSet::new());
        let mut blobs = place.list();
        while let Some((digest, size)) = blobs.try_next().await? {
            there.insert(digest.fingerprint());
            if blocking(&library, move |library| library.blobs().size_in_tier(&digest)).await? == Some(size) {
                continue;
            }
            if needed.contains(&digest.fingerprint()) {
                let blob = Descriptor::blob(digest, size);
                blocking(&library, move |library| library.blobs().record_in_tier(&blob, &[])).await?;
                report.found += 1;
            } else {
                place.remove(&digest).await?;
                report.removed += 1;
            }
        }
        report.lost = self.blocking(move |library| drop_lost(library, &there)).await?;
        for digest in &report.lost {
            tracing::error!(blob = %digest, tier = self.location(), "the tier has lost a blob; `lode repair` fetches it again");
        }
        Ok(report)
    }
}

/// The blobs to which a document refers, by the first bytes of their digests.
fn needed(library: &Library) -> Result<HashSet<u64>> {
    let mut needed = HashSet::new();
    let versions = library.names().all_kept_versions().into_iter().flat_map(|(_, versions)| versions);
    for document in library.notes().documents().into_iter().chain(versions) {
        // A document that cannot be read may need any blob: nothing is removed then.
        needed.extend(library.needs(&document)?.iter().map(|need| need.descriptor.digest.fingerprint()));
    }
    Ok(needed)
}

/// Takes blobs off the list that the tier does not have. Blobs that the disk lacks, too, are
/// returned, and stay on the list until a repair has fetched them.
fn drop_lost(library: &Library, there: &HashSet<u64>) -> Result<Vec<Digest>> {
    let (mut lost, mut surplus) = (Vec::new(), Vec::new());
    library.blobs().each_in_tier(|digest, _| {
        if !there.contains(&digest.fingerprint()) {
            surplus.push(digest);
        }
    })?;
    for digest in surplus {
        if library.blobs().size_on_disk(&digest)?.is_some() {
            library.blobs().forget_in_tier(&digest)?;
        } else {
            lost.push(digest);
        }
    }
    Ok(lost)
}
