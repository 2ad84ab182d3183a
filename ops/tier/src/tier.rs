//! The tier of a store, as one value that is cloned freely.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use content::operation::{OperationError, Result};
use content::tier::TierOwner;
use content::{BlobTier, Digest, Error};
use futures_util::future::BoxFuture;
use library::Library;
use tokio::sync::{Notify, OnceCell, RwLock};

use crate::blocking::blocking;
use crate::recall_turns::RecallTurns;
use crate::recent_failure::RecentFailure;

/// Opens the tier for a store.
pub type OpenTier = dyn Fn(TierOwner) -> BoxFuture<'static, Result<Arc<dyn BlobTier>, Error>> + Send + Sync;

/// Which blobs move to the tier without a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierPolicy {
    /// Models that have not been used for this long. `None`: none.
    pub after: Option<Duration>,
    /// Maximum bytes of all blobs on the disk. Beyond it, the models that were not used for the
    /// longest time move. `None`: no maximum.
    pub disk: Option<u64>,
}

/// A tier to attach.
pub struct TierOptions {
    /// Where it is: a URL or a folder. The store remembers it.
    pub location: String,
    /// Which blobs move without a request.
    pub policy: TierPolicy,
    /// Becomes the id of the store if it has none.
    pub new_id: String,
    /// Opens it.
    pub open: Box<OpenTier>,
    /// Returns the manifests of loaded models, whose blobs stay on the disk.
    pub loaded: Box<LoadedModels>,
}

/// Returns the manifests of loaded models.
pub type LoadedModels = dyn Fn() -> HashSet<Digest> + Send + Sync;

/// The tier of a store. Clones share their state.
#[derive(Clone, Debug)]
pub struct Tier(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) library: Library,
    pub(crate) location: String,
    pub(crate) policy: TierPolicy,
    /// The id of the store.
    owner: String,
    open: Box<OpenTier>,
    place: OnceCell<Arc<dyn BlobTier>>,
    failure: RecentFailure,
    loaded: Box<LoadedModels>,
    /// Read by the move of a blob; written by removals and by comparisons of a blob, which exclude
    /// moves.
    pub(crate) changing: RwLock<()>,
    pub(crate) recalls: RecallTurns,
    /// Set when the disk may have more than its budget.
    due: Notify,
}

impl Tier {
    /// Creates the value, for the store with this id.
    pub(crate) fn new(library: Library, owner: String, options: TierOptions) -> Self {
        let TierOptions { location, policy, open, loaded, .. } = options;
        Self(Arc::new(Inner {
            library,
            location,
            policy,
            owner,
            open,
            place: OnceCell::new(),
            failure: RecentFailure::default(),
            loaded,
            changing: RwLock::default(),
            recalls: RecallTurns::default(),
            due: Notify::new(),
        }))
    }

    /// Where the tier is.
    pub fn location(&self) -> &str {
        &self.0.location
    }

    /// Opens the tier, unless it is open. After a failure, it is not tried again for a second.
    ///
    /// # Errors
    /// It cannot be reached, belongs to another store, or is empty although it should have blobs.
    pub async fn place(&self) -> Result<&Arc<dyn BlobTier>, Error> {
        let open = || async {
            self.0.failure.check()?;
            let has_blobs = blocking(&self.0.library, |library| library.blobs().has_any_in_tier()).await?;
            let opened = (self.0.open)(TierOwner { id: self.0.owner.clone(), has_blobs }).await;
            opened.inspect_err(|error| self.0.failure.remember(error))
        };
        self.0.place.get_or_try_init(open).await
    }

    /// The size of a blob in the tier. After a failure, the tier is not asked again for a second.
    pub(crate) async fn size_there(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let place = self.place().await?;
        self.0.failure.check()?;
        place.size(digest).await.inspect_err(|error| self.0.failure.remember(error))
    }

    /// Waits until blobs should move because the disk has got more of them.
    pub async fn due(&self) {
        self.0.due.notified().await;
    }

    pub(crate) fn tell_due(&self) {
        self.0.due.notify_one();
    }

    pub(crate) fn loaded(&self) -> HashSet<Digest> {
        (self.0.loaded)()
    }

    /// Runs work that blocks on the disk.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Library) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let library = self.0.library.clone();
        let done = tokio::task::spawn_blocking(move || work(&library)).await;
        done.map_err(|e| OperationError::text(format!("the operation ended unexpectedly: {e}")))?
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier").field("location", &self.location).field("policy", &self.policy).finish_non_exhaustive()
    }
}
