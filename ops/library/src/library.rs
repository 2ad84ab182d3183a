//! The models of a store, as one value that is cloned freely.

use std::sync::Arc;

use store::Store;

use crate::collections::Collections;
use crate::recent::Recent;
use crate::summary::Summaries;

/// The models of a store. Clones share their state.
#[derive(Clone, Debug)]
pub struct Library {
    /// The underlying store.
    pub store: Store,
    /// Contents of recently used models, shared by all concurrent requests for a model.
    pub(crate) recent: Arc<Recent>,
    pub(crate) collections: Arc<Collections>,
    pub(crate) summaries: Arc<Summaries>,
}

impl Library {
    /// Creates a library of the models in a store.
    pub fn new(store: Store) -> Self {
        Self { store, recent: Arc::default(), collections: Arc::default(), summaries: Arc::default() }
    }
}
