//! How much is where.

use content::operation::Result;

use crate::tier::{Tier, TierPolicy};

/// The state of a tier. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierStatus {
    /// Where the tier is.
    pub location: String,
    /// Which blobs move without a request.
    pub policy: TierPolicy,
    /// Bytes of all blobs on the disk.
    pub disk_bytes: u64,
    /// Number of blobs that the tier has.
    pub tier_blobs: u64,
    /// Their bytes.
    pub tier_bytes: u64,
    /// Number of these blobs that are not on the disk.
    pub moved_blobs: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Why the tier cannot be used; `None` if it answers.
    pub problem: Option<String>,
}

impl Tier {
    /// Counts blobs, and asks the tier whether it answers.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn status(&self) -> Result<TierStatus> {
        let (location, policy) = (self.0.location.clone(), self.0.policy);
        let problem = self.ask().await.err().map(|error| error.to_string());
        self.blocking(move |library| {
            let (mut tier, mut moved) = ((0, 0), (0, 0));
            let unreadable = library.blobs().each_in_tier(|digest, size| {
                tier = (tier.0 + 1, tier.1 + size);
                if matches!(library.blobs().size_on_disk(&digest), Ok(None)) {
                    moved = (moved.0 + 1, moved.1 + size);
                }
            });
            let problem = problem.or_else(|| unreadable.first().map(ToString::to_string));
            Ok(TierStatus {
                location,
                policy,
                disk_bytes: library.stored_bytes(),
                tier_blobs: tier.0,
                tier_bytes: tier.1,
                moved_blobs: moved.0,
                moved_bytes: moved.1,
                problem,
            })
        })
        .await
    }

    /// Asks the tier for a blob that it need not have.
    async fn ask(&self) -> Result<(), content::Error> {
        self.size_there(&content::Digest::of(b"")).await.map(drop)
    }
}
