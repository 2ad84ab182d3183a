//! Blobs that somebody was told are there, so that they are not sent again: the collector leaves them alone for a while. Only
//! in memory: telling writes nothing. After a restart who was told sends again what has gone.

use std::collections::HashMap;
use std::time::SystemTime;

use content::Digest;

use crate::Store;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The most blobs that are promised at a time. Beyond it nothing is promised: who was told may have to send again.
const MOST: usize = 1 << 16;

/// Until when a blob is promised, by where that was told.
pub(crate) type Places = HashMap<Box<str>, SystemTime>;
/// All blobs that are promised.
pub(crate) type Promised = HashMap<Digest, Places>;

/// All promises.
#[derive(Debug, Default)]
pub(crate) struct Promises(Mutex<Promised>);

impl Promises {
    /// Held by the collector between looking at a promise and deleting the blob.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Promised> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets those that have ended.
    pub(crate) fn expire(&self, now: SystemTime) {
        self.lock().retain(|_, places| {
            places.retain(|_, until| *until > now);
            !places.is_empty()
        });
    }

    /// Takes back what was told at a place; with `latest`, only what ends until then.
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

impl Store {
    /// Keeps a blob from collection until then, where it is there when this returns: look after it, not before. `place` is
    /// the repository in which somebody was told, whose [`unlink`](Self::unlink) ends it; or any other text.
    pub fn promise(&self, place: &str, digest: &Digest, until: SystemTime) {
        let mut promised = self.0.promises.lock();
        if promised.len() >= MOST && !promised.contains_key(digest) {
            return;
        }
        let known = promised.entry(*digest).or_default().entry(place.into()).or_insert(until);
        *known = until.max(*known);
    }
}
