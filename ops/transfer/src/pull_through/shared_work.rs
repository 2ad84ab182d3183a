//! Work that several clients wait for: done once for each key, in its own task, so that it goes on
//! when a client leaves.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use content::Error;
use content::operation::{Classified, ErrorClass};
use tokio::sync::watch;
use tokio::time::Instant;

/// The work in progress, by key. Clones share it.
#[derive(Debug)]
pub(super) struct SharedWork<K, T>(Arc<Mutex<HashMap<K, Running<T>>>>);

/// The result; `None` while the work is in progress.
type SharedResult<T> = Option<Result<T, Failure>>;

/// Why the work failed, for all clients that wait for it.
#[derive(Clone, Debug)]
struct Failure {
    class: ErrorClass,
    text: String,
}

/// Work in progress, from the view of a client.
#[derive(Clone, Debug)]
pub(super) struct Running<T> {
    outcome: watch::Receiver<SharedResult<T>>,
    /// When the work began.
    pub(super) begun: Instant,
}

/// The clients that wait for the work.
pub(super) struct Waiters<T>(Arc<watch::Sender<SharedResult<T>>>);

impl<K, T> Clone for SharedWork<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, T> Default for SharedWork<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, T> SharedWork<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// The work with this key, if it is in progress.
    pub(super) fn find(&self, key: &K) -> Option<Running<T>> {
        self.lock().get(key).cloned()
    }

    /// Amount of work in progress.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Joins the work with this key, or begins it.
    pub(super) fn join<W>(&self, key: K, work: impl FnOnce(Waiters<T>) -> W) -> Running<T>
    where
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let mut all = self.lock();
        if let Some(running) = all.get(&key) {
            return running.clone();
        }
        let (sender, outcome) = watch::channel(None);
        let sender = Arc::new(sender);
        let running = Running { outcome, begun: Instant::now() };
        all.insert(key.clone(), running.clone());
        let (work, entry) = (work(Waiters(sender.clone())), WorkEntry { all: self.clone(), key });
        tokio::spawn(async move {
            let result = work.await.map_err(|error| Failure { class: error.class(), text: error.to_string() });
            drop(entry);
            sender.send_replace(Some(result));
        });
        running
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Running<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of work in progress; dropping it removes it.
struct WorkEntry<K: Eq + Hash, T> {
    all: SharedWork<K, T>,
    key: K,
}

impl<K: Eq + Hash, T> Drop for WorkEntry<K, T> {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl<T> Waiters<T> {
    /// Whether a client waits. The list of work in progress has a receiver, too.
    pub(super) fn are_there(&self) -> bool {
        self.0.receiver_count() > 1
    }
}

impl<T: Clone> Running<T> {
    /// Waits for the result.
    pub(super) async fn finished(&mut self) -> Result<T, Error> {
        let stopped = || Error::Other("the request to the other registry was stopped; repeat it".into());
        let outcome = self.outcome.wait_for(Option::is_some).await.map_err(|_| stopped())?;
        match outcome.as_ref().ok_or_else(stopped)? {
            Ok(done) => Ok(done.clone()),
            Err(Failure { class: ErrorClass::Remote(class), text }) => {
                Err(Error::Remote { class: *class, source: text.clone().into() })
            }
            Err(Failure { text, .. }) => Err(Error::Other(text.clone().into())),
        }
    }
}
