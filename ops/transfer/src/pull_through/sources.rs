//! The registries from which content is copied. Requests share their connections, tokens and rate
//! limits for a minute, after which changed settings apply.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use content::Error;
use registry::client::{Fetcher, Host, Remote};
use registry::server::CopiedFrom;

use crate::hosts::Hosts;

/// How long connections and settings are kept.
const KEPT: Duration = Duration::from_mins(1);
/// How long copies are served without a request to a registry that has failed.
const PAUSE: Duration = Duration::from_secs(30);

/// The registries. Clones share what is kept of them.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    hosts: Hosts,
    kept: Arc<Mutex<HashMap<String, KeptRegistry>>>,
}

#[derive(Debug, Default)]
struct KeptRegistry {
    /// Its mirrors and itself, and the maximum number of requests at a time.
    connected: Option<(Vec<Host>, usize, Instant)>,
    failed: Option<Instant>,
}

/// A repository of another registry.
#[derive(Clone, Debug)]
pub(super) struct CopySource {
    pub(super) remote: Remote,
    pub(super) fetcher: Fetcher,
}

impl Sources {
    pub(super) fn new(hosts: Hosts) -> Self {
        Self { hosts, kept: Arc::default() }
    }

    /// Connects to a repository.
    pub(super) fn connect(&self, from: CopiedFrom<'_>) -> Result<CopySource, Error> {
        let (hosts, parallel) = self.hosts_of(from.host).map_err(|e| Error::Other(e.into_boxed()))?;
        let remote = Remote::for_copies(hosts, from.name);
        Ok(CopySource { fetcher: Fetcher::new(remote.clone(), parallel), remote })
    }

    fn hosts_of(&self, registry: &str) -> content::operation::Result<(Vec<Host>, usize)> {
        let mut kept = self.lock();
        let own = kept.entry(registry.to_owned()).or_default();
        if let Some((hosts, parallel, read)) = &own.connected
            && read.elapsed() < KEPT
        {
            return Ok((hosts.clone(), *parallel));
        }
        let (hosts, parallel) = (self.hosts.sources(registry)?, self.hosts.parallel(registry)?);
        own.connected = Some((hosts.clone(), parallel, Instant::now()));
        Ok((hosts, parallel))
    }

    /// Whether a registry has failed a moment ago.
    pub(super) fn is_failing(&self, registry: &str) -> bool {
        let kept = self.lock();
        kept.get(registry).and_then(|own| own.failed).is_some_and(|failed| failed.elapsed() < PAUSE)
    }

    /// Notes that a registry has failed.
    pub(super) fn note_failure(&self, registry: &str) {
        self.lock().entry(registry.to_owned()).or_default().failed = Some(Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, KeptRegistry>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
