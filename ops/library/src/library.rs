//! The models of a store, as one value that is cloned freely.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use content::{Descriptor, Digest, Expected, IngestId, Ingester, Provider};
use store::{Blobs, Guard, Hold, Leases, Names, Notes, Store};

use crate::collections::Collections;
use crate::recent::Recent;
use crate::summary::Summaries;

/// The models of a store. Clones share their state.
#[derive(Clone, Debug)]
pub struct Library {
    pub(crate) store: Store,
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

    /// The blobs of the store, for callers that block.
    pub fn blobs(&self) -> Blobs<'_> {
        self.store.blobs()
    }

    /// Tags, links, pins and histories.
    pub fn names(&self) -> Names<'_> {
        self.store.names()
    }

    /// Protection of blobs for a time.
    pub fn leases(&self) -> Leases<'_> {
        self.store.leases()
    }

    /// Facts derived from blobs.
    pub fn notes(&self) -> Notes<'_> {
        self.store.notes()
    }

    /// Keeps new blobs, and blobs passed to [`Guard::keep`], from collection: see [`Store::guard`].
    pub fn guard(&self) -> Guard {
        self.store.guard()
    }

    /// Keeps blobs from collection while they are read: see [`Store::hold`].
    pub fn hold(&self, digests: Vec<Digest>) -> Hold {
        self.store.hold(digests)
    }

    /// The folder of the store.
    pub fn home(&self) -> &Path {
        self.store.home()
    }

    /// Free space on the file system of the store, in bytes.
    ///
    /// # Errors
    /// The file system does not answer.
    pub fn free_space(&self) -> Result<u64, store::Error> {
        self.store.free_space()
    }

    /// Returns the folders of the roots, in the order in which they are read.
    pub fn roots(&self) -> Vec<&Path> {
        self.store.roots()
    }

    /// Whether nothing can be written to the store.
    pub fn is_read_only(&self) -> bool {
        self.store.is_read_only()
    }

    /// Fails if nothing can be written to the store.
    ///
    /// # Errors
    /// [`content::Error::ReadOnly`].
    pub fn ensure_writable(&self) -> Result<(), store::Error> {
        self.store.ensure_writable()
    }
}

impl Provider for Library {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, content::Error> {
        self.store.stat(digest).await
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, content::Error> {
        self.store.read(blob, range).await
    }
}

impl Ingester for Library {
    type Ingest = <Store as Ingester>::Ingest;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<Self::Ingest, content::Error> {
        self.store.ingest(id, expected).await
    }
}
