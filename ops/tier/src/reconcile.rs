//! Comparing the tier with the store's list of it.

use std::collections::HashSet;
use std::sync::Arc;

use content::operation::Result;
use content::{Descriptor, Digest, Error};
use futures_util::TryStreamExt;
use library::Library;
use store::{Needed, Verified};

use crate::blocking::blocking;
use crate::moves::head;
use crate::tier::Tier;

/// The difference between the tier and the store's list of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Number of blobs of the tier that were added to the list: the store needs them.
    pub found: u64,
    /// Number of blobs that were removed from the tier: nothing refers to them.
    pub removed: u64,
    /// Blobs of the list that neither the tier nor the disk has.
    pub lost: Vec<Digest>,
}

/// The repair for a blob of the tier.
enum Difference {
    None,
    Record,
    Remove,
}

impl Tier {
    /// Lists the tier and repairs differences. A process that was killed after it put a blob, and
    /// before it recorded that, leaves a blob that the list lacks.
    ///
    /// If a name or a document is unreadable, all blobs count as needed.
    ///
    /// Memory: 8 bytes for each blob of the tier and for each blob to which a document refers.
    ///
    /// # Errors
    /// The tier or the store cannot be read.
    pub async fn reconcile(&self) -> Result<Reconciled> {
        self.remove_unneeded().await?;
        let needed = Arc::new(self.blocking(|library| Ok(needed(library))).await?);
        let place = self.place().await?;
        let (mut report, mut there) = (Reconciled::default(), HashSet::new());
        let mut blobs = place.list();
        while let Some((digest, size)) = blobs.try_next().await? {
            if self.is_listed(&digest, size).await? {
                there.insert(digest.fingerprint());
                continue;
            }
            // No blob moves meanwhile, so a blob without an entry is not about to get one.
            let _changing = self.0.changing.write().await;
            let needed = needed.clone();
            let is_needed = move || (*needed).as_ref().is_none_or(|needed| needed.contains(&digest));
            let compare = move |library: &Library| compare(library, &digest, size, is_needed());
            match blocking(&self.0.library, compare).await? {
                Difference::None => {}
                // A removal may have come first.
                Difference::Record if place.size(&digest).await? != Some(size) => {}
                Difference::Record => {
                    blocking(&self.0.library, move |library| record(library, &Descriptor::blob(digest, size))).await?;
                    there.insert(digest.fingerprint());
                    report.found += 1;
                }
                Difference::Remove => {
                    place.remove(&digest).await?;
                    blocking(&self.0.library, move |library| library.blobs().end_damaged_in_tier(&digest)).await?;
                    report.removed += 1;
                }
            }
        }
        report.lost = self.drop_lost(there).await?;
        Ok(report)
    }

    /// Takes blobs off the list that the tier does not have. Returns the blobs that the disk lacks,
    /// too: they are missing from now on.
    async fn drop_lost(&self, there: HashSet<u64>) -> Result<Vec<Digest>> {
        let (mut lost, surplus) = (Vec::new(), self.blocking(move |library| Ok(surplus(library, &there))).await?);
        for digest in surplus {
            if !self.forget_lost(&digest).await? {
                continue;
            }
            let size = blocking(&self.0.library, move |library| library.blobs().size_on_disk(&digest)).await?;
            if size.is_none() {
                tracing::error!(
                    blob = %digest,
                    tier = self.location(),
                    "the tier has lost a blob; `lode repair` fetches it again"
                );
                lost.push(digest);
            }
        }
        Ok(lost)
    }

    async fn is_listed(&self, digest: &Digest, size: u64) -> Result<bool, Error> {
        let digest = *digest;
        blocking(&self.0.library, move |library| Ok(entry(library, &digest)? == Some(size))).await
    }
}

/// The blobs that a collection would keep; `None` if that is not known.
fn needed(library: &Library) -> Option<Needed> {
    let needed = library.needed_blobs();
    needed.inspect_err(|error| tracing::warn!("no blob is removed from the tier for now: {error}")).ok()
}

/// The size in the entry of a blob. A damaged entry is written again.
fn entry(library: &Library, digest: &Digest) -> Result<Option<u64>, store::Error> {
    match library.blobs().size_in_tier(digest) {
        Err(store::Error::Damaged { .. }) => Ok(None),
        other => other,
    }
}

/// Decides about a blob of the tier for which there is no entry of this size.
fn compare(library: &Library, digest: &Digest, size: u64, is_needed: bool) -> Result<Difference, store::Error> {
    let blobs = library.blobs();
    Ok(match (entry(library, digest)?, blobs.size_on_disk(digest)?) {
        // Of the same size: it has moved since. Of another size: the copy is damaged, which the
        // next move or copy back finds.
        (Some(_), _) => Difference::None,
        _ if blobs.is_tier_removal(digest)? => Difference::None,
        (None, _) if !is_needed => Difference::Remove,
        (None, _) if blobs.is_damaged_in_tier(digest)? => Difference::None,
        (None, Some(here)) if here != size => Difference::None,
        (None, _) => Difference::Record,
    })
}

/// Records a blob of the tier. Without a good file, its header is only in the tier.
fn record(library: &Library, blob: &Descriptor) -> Result<(), store::Error> {
    let is_good = library.blobs().size_on_disk(&blob.digest)?.is_some()
        && library.blobs().verify(&blob.digest, Some(blob.size), &mut |_| true)? == Verified::Good;
    let file = if is_good { library.blobs().open_on_disk(&blob.digest)? } else { None };
    let head = file.map_or(Ok(Vec::new()), |file| head(&file))?;
    library.blobs().record_in_tier(blob, &head)
}

/// The blobs of the list that are not in a list of the tier.
fn surplus(library: &Library, there: &HashSet<u64>) -> Vec<Digest> {
    let mut surplus = Vec::new();
    let unreadable = library.blobs().each_in_tier(|digest, _| {
        if !there.contains(&digest.fingerprint()) {
            surplus.push(digest);
        }
    });
    for error in unreadable {
        tracing::warn!("{error}");
    }
    surplus
}
