//! The models of a store, as one value that everybody clones.

use std::sync::Arc;

use store::Store;

use crate::collections::Collections;
use crate::recent::Recent;
use crate::summary::Summaries;

/// The models of a store. Clones are the same library.
#[derive(Clone, Debug)]
pub struct Library {
    /// Where everything is.
    pub store: Store,
    /// Shared by hundreds of requests that may wait for one model.
    pub(crate) recent: Arc<Recent>,
    pub(crate) collections: Arc<Collections>,
    pub(crate) summaries: Arc<Summaries>,
}

impl Library {
    /// The models of this store.
    pub fn new(store: Store) -> Self {
        Self { store, recent: Arc::default(), collections: Arc::default(), summaries: Arc::default() }
    }
}
