//! Promises: a client learnt that a blob exists and so does not send it. The collector keeps such a
//! blob for a while. Promises are only in memory, so that making one writes nothing. After a
//! restart, a client has to send blobs again that were collected.

use std::collections::HashMap;
use std::time::SystemTime;

use content::Digest;

use crate::Leases;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of promised blobs. Beyond it no promise is made, and the client may have to send
/// the blob again.
const MOST: usize = 1 << 16;

/// The end of a blob's promises, by the place (repository) where the promise was made.
pub(crate) type Places = HashMap<Box<str>, SystemTime>;
/// All promised blobs.
pub(crate) type Promised = HashMap<Digest, Places>;

/// All promises.
#[derive(Debug, Default)]
pub(crate) struct Promises(Mutex<Promised>);

impl Promises {
    /// The collector holds this lock from its check of a promise until the blob is deleted.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Promised> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets promises that have ended.
    pub(crate) fn expire(&self, now: SystemTime) {
        self.lock().retain(|_, places| {
            places.retain(|_, until| *until > now);
            !places.is_empty()
        });
    }

    /// Withdraws a promise of a place; with `latest`, only if it ends at that time or earlier.
    pub(crate) fn withdraw(&self, place: &str, digest: &Digest, latest: Option<SystemTime>) {
        let mut promised = self.lock();
        if let Some(places) = promised.get_mut(digest) {
            places.retain(|own, until| **own != *place || latest.is_some_and(|latest| *until > latest));
            if places.is_empty() {
                promised.remove(digest);
            }
        }
    }
}

impl Leases<'_> {
    /// Keeps a blob from collection until `until`, if it exists when this returns: look for it
    /// afterwards, not before. `place` is the repository in which the client asked; its
    /// [`unlink`](Self::unlink) ends the promise. Other callers may use any other text.
    pub fn promise(&self, place: &str, digest: &Digest, until: SystemTime) {
        let mut promised = self.0.0.promises.lock();
        if promised.len() >= MOST && !promised.contains_key(digest) {
            return;
        }
        let known = promised.entry(*digest).or_default().entry(place.into()).or_insert(until);
        *known = until.max(*known);
    }
}
