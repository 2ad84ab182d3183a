//! Blobs that somebody was told are there, so that they are not sent again: the collector leaves them alone for a while. Only
//! in memory: telling writes nothing. After a restart who was told sends again what has gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use content::Digest;

use crate::Store;

/// The most blobs that are promised at a time; beyond it those are forgotten that end first.
const MOST: usize = 1 << 16;

/// Until when each is promised.
#[derive(Debug, Default)]
pub(crate) struct Promises(Mutex<HashMap<Digest, SystemTime>>);

impl Promises {
    /// Held by the collector between looking at a promise and deleting the blob.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Digest, SystemTime>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets those that have ended.
    pub(crate) fn expire(&self, now: SystemTime) {
        self.lock().retain(|_, until| *until > now);
    }
}

impl Store {
    /// Keeps a blob from collection until then, where it is there when this returns: look after it, not before.
    pub fn promise(&self, digest: &Digest, until: SystemTime) {
        let mut promises = self.0.promises.lock();
        let known = promises.entry(*digest).or_insert(until);
        *known = until.max(*known);
        if promises.len() > MOST {
            let mut ends: Vec<SystemTime> = promises.values().copied().collect();
            let (_, middle, _) = ends.select_nth_unstable(MOST / 2);
            let middle = *middle;
            promises.retain(|other, end| *end > middle || other == digest);
        }
    }
}
