//! Removing blobs from the tier after a collection has released them.

use content::{Digest, Error};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::blocking::blocking;
use crate::tier::Tier;

/// Number of blobs that are removed while no blob moves.
const BATCH: usize = 256;
/// Number of blobs that are removed at a time.
const REMOVALS: usize = 8;

impl Tier {
    /// Removes blobs from the tier that the store no longer needs. If the tier refuses that, they
    /// stay for now, and moves go on.
    pub(crate) async fn remove_unneeded(&self) -> Result<(), Error> {
        let removals = blocking(&self.0.library, |library| library.blobs().tier_removals()).await?;
        for batch in removals.chunks(BATCH) {
            let _changing = self.0.changing.write().await;
            let removed = stream::iter(batch.to_vec()).map(|digest| self.remove(digest)).buffer_unordered(REMOVALS);
            if let Err(error) = removed.try_collect::<()>().await {
                tracing::warn!("blobs that the store no longer needs stay in the tier for now: {error}");
                return Ok(());
            }
        }
        Ok(())
    }

    async fn remove(&self, digest: Digest) -> Result<(), Error> {
        let library = &self.0.library;
        // A move has recorded the blob again since the collection released it: it must stay.
        if blocking(library, move |library| library.blobs().size_in_tier(&digest)).await?.is_none() {
            self.place().await?.remove(&digest).await?;
        }
        blocking(library, move |library| library.blobs().end_tier_removal(&digest)).await
    }
}
