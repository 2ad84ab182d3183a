//! Leases: blobs that nothing refers to yet and that a collection must leave alone for a while.
//!
//! A client that uploads blobs and then creates a model from them needs this in between. A lease is a file with the
//! second (Unix time) at which it ends and a digest per line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use content::{Digest, IngestId};

use crate::{Error, Store, files};

/// The name of a lease; the same alphabet as an ingest's.
pub type LeaseId = IngestId;

impl Store {
    /// Protects `digests` until `until`. Replaces the lease of that id.
    pub fn set_lease(&self, id: &LeaseId, digests: &[Digest], until: SystemTime) -> Result<(), Error> {
        let end = until.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let lines: Vec<String> = [end.to_string()].into_iter().chain(digests.iter().map(ToString::to_string)).collect();
        let _names = self.names();
        let temporary = self.0.layout.temporary().join(format!("lease-{id}"));
        files::write_synced(&temporary, lines.join("\n").as_bytes())?;
        let path = self.0.layout.leases().join(id.as_str());
        fs::rename(&temporary, &path).map_err(|e| Error::io("set the lease", &path, e))?;
        files::sync_folder(&self.0.layout.leases())
    }

    /// The digests under a lease, also where it has ended; none where there is no such lease.
    pub fn lease(&self, id: &LeaseId) -> Result<Vec<Digest>, Error> {
        let path = self.0.layout.leases().join(id.as_str());
        let Some(text) = files::read_if_there(&path)? else { return Ok(Vec::new()) };
        Ok(parse(&path, &text)?.1)
    }

    /// Ends a lease early; says whether it was there.
    pub fn end_lease(&self, id: &LeaseId) -> Result<bool, Error> {
        files::remove(&self.0.layout.leases().join(id.as_str()))
    }

    /// The digests under lease at `now`, and the leases that have ended.
    pub(crate) fn leased(&self, now: SystemTime) -> Result<(Vec<Digest>, Vec<PathBuf>), Error> {
        let (mut leased, mut ended) = (Vec::new(), Vec::new());
        for entry in files::entries(&self.0.layout.leases())? {
            let path = entry.path();
            let Some(text) = files::read_if_there(&path)? else { continue };
            let (end, digests) = parse(&path, &text)?;
            if end < now {
                ended.push(path);
            } else {
                leased.extend(digests);
            }
        }
        Ok((leased, ended))
    }
}

fn parse(path: &Path, text: &str) -> Result<(SystemTime, Vec<Digest>), Error> {
    let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
    let mut lines = text.lines();
    let end = lines.next().and_then(|line| line.parse().ok()).ok_or_else(|| damaged("it has no expiry".to_owned()))?;
    let end = UNIX_EPOCH
        .checked_add(Duration::from_secs(end))
        .ok_or_else(|| damaged("its expiry is out of range".to_owned()))?;
    let digests = lines.map(|line| line.parse().map_err(|e| damaged(format!("{e}")))).collect::<Result<_, _>>()?;
    Ok((end, digests))
}
