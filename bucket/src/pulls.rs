//! Records of pulls, for retention.
//!
//! `repos/NAME/pulls/HEX` is empty; its time is that of a recorded pull of the manifest `HEX`. The
//! last pull was up to an hour later. The time of `repos/NAME/pulls/since` is that of the first
//! retention that read the folder.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use content::Digest;
use futures_util::TryStreamExt;
use registry::RepositoryName;
use registry::server::Pulls;

use crate::Error;
use crate::keys::{self, RepositoryFolder};
use crate::objects::Objects;

/// The entry with the time of the first retention.
const SINCE: &str = "since";
/// Time between two records of a manifest's pulls by one process.
const INTERVAL: Duration = Duration::from_hours(1);
/// Maximum number of pulls that a process remembers.
const REMEMBERED: usize = 100_000;

/// The pulls that this process has recorded, with the times. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PullRecords(Arc<Mutex<HashMap<(RepositoryName, Digest), Instant>>>);

impl PullRecords {
    fn is_recent(&self, pull: &(RepositoryName, Digest)) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(pull).is_some_and(|recorded| recorded.elapsed() < INTERVAL)
    }

    fn remember(&self, pull: (RepositoryName, Digest)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(pull, Instant::now());
    }

    /// Records a pull, unless this process has done so a moment ago.
    pub(crate) async fn record(&self, objects: &Objects, of: &RepositoryName, manifest: &Digest) -> Result<(), Error> {
        let pull = (of.clone(), *manifest);
        if !self.is_recent(&pull) {
            let key = RepositoryFolder::Pulls.entry(of, &manifest.hex());
            // Before the request, so that a storage that refuses it is asked once an hour.
            self.remember(pull);
            objects.put(&key, vec![Bytes::new()]).await?;
        }
        Ok(())
    }
}

/// The recorded pulls of a repository.
pub(crate) async fn read(objects: &Objects, of: &RepositoryName, now: SystemTime) -> Result<Pulls, Error> {
    let (mut since, mut last) = (None, HashMap::new());
    let mut entries = objects.list(&RepositoryFolder::Pulls.of(of), None);
    while let Some(entry) = entries.try_next().await? {
        match keys::last(&entry.key) {
            SINCE => since = Some(entry.modified),
            hex => last.extend(keys::digest(hex).map(|digest| (digest, now.min(entry.modified + INTERVAL)))),
        }
    }
    if since.is_none() {
        objects.swap(&RepositoryFolder::Pulls.entry(of, SINCE), None, Bytes::new()).await?;
    }
    Ok(Pulls { since: since.unwrap_or(now), last })
}

/// Removes the record of a manifest that is deleted.
pub(crate) async fn forget(objects: &Objects, of: &RepositoryName, manifest: &Digest) -> Result<(), Error> {
    objects.delete(&RepositoryFolder::Pulls.entry(of, &manifest.hex())).await
}
