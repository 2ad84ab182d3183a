//! Attaching a tier to a store.

use std::sync::Arc;

use content::operation::Result;
use library::Library;
use store::Store;

use crate::recaller::Recaller;
use crate::tier::{Tier, TierOptions};

impl Tier {
    /// Attaches a tier to a store. The tier is opened at its first use, so a daemon starts and
    /// serves the models on its disk while the tier cannot be reached.
    ///
    /// # Errors
    /// The store cannot be written, or its blobs are in another tier.
    pub fn attach(store: &Store, library: Library, options: TierOptions) -> Result<Self> {
        let owner = store.tier_owner(&options.new_id)?;
        let tier = Self::new(library, owner, options);
        store.attach_tier(tier.location(), Arc::new(Recaller::new(&tier)?))?;
        Ok(tier)
    }
}
