//! Leases: blobs that nothing refers to yet and that a collection must leave alone for a while.
//!
//! A client that uploads blobs and then creates a model from them needs this in between. A lease is a file with the
//! second (Unix time) at which it ends and a digest per line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use content::{Digest, IngestId};

use crate::{Error, Store, files};

/// No lease is longer: what is asked for beyond it is cut.
const LONGEST_LEASE: Duration = Duration::from_hours(24 * 7);

/// The name of a lease; the same alphabet as an ingest's.
pub type LeaseId = IngestId;

impl Store {
    /// Protects `digests` until `until`. Replaces the lease of that id.
    pub fn set_lease(&self, id: &LeaseId, digests: &[Digest], until: SystemTime) -> Result<(), Error> {
        self.ensure_writable()?;
        let latest = SystemTime::now().checked_add(LONGEST_LEASE).unwrap_or(until);
        let end = until.min(latest).duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        for digest in digests {
            self.0.gate.touch(digest);
        }
        self.settle()?;
        let lines: Vec<String> = [end.to_string()].into_iter().chain(digests.iter().map(ToString::to_string)).collect();
        let _names = self.names();
        let temporary = self.0.layout.temporary().join(format!("lease-{id}"));
        files::write_synced(&temporary, lines.join("\n").as_bytes())?;
        let path = self.0.layout.leases().join(id.as_str());
        fs::rename(&temporary, &path).map_err(|e| Error::io("set the lease", &path, e))?;
        self.0.placing.sync(&self.0.layout.leases())
    }

    /// The digests under a lease, also where it has ended; none where there is no such lease.
    pub fn lease(&self, id: &LeaseId) -> Result<Vec<Digest>, Error> {
        let path = self.0.layout.leases().join(id.as_str());
        let Some(text) = files::read_if_there(&path)? else { return Ok(Vec::new()) };
        Ok(parse(&path, &text)?.1)
    }

    /// Ends a lease early; says whether it was there.
    pub fn end_lease(&self, id: &LeaseId) -> Result<bool, Error> {
        self.ensure_writable()?;
        files::remove(&self.0.layout.leases().join(id.as_str()))
    }

    /// Removes a lease that has ended; one that was renewed meanwhile stays.
    pub(crate) fn remove_ended_lease(&self, path: &Path, now: SystemTime) -> Result<(), Error> {
        let _names = self.names();
        if read(path, now)?.is_some_and(|lease| lease.end < now) {
            files::remove(path)?;
        }
        Ok(())
    }
}

/// What is below the folder of leases.
#[derive(Debug, Default)]
pub(crate) struct FoundLeases {
    /// Digests under leases that have not ended, with the ends of those.
    pub(crate) digests: Vec<(Digest, SystemTime)>,
    /// The files of those that have.
    pub(crate) ended: Vec<PathBuf>,
    /// What is not known to be a lease or none.
    pub(crate) damaged: Vec<Error>,
}

pub(crate) fn walk(root: &Path, now: SystemTime) -> FoundLeases {
    let mut found = FoundLeases::default();
    let entries = match files::entries_if_there(root) {
        Ok(entries) => entries,
        Err(error) => return FoundLeases { damaged: vec![error], ..found },
    };
    for entry in entries {
        match read(&entry.path(), now) {
            Ok(Some(lease)) if lease.end < now => found.ended.push(entry.path()),
            Ok(Some(lease)) => found.digests.extend(lease.digests.into_iter().map(|digest| (digest, lease.end))),
            Ok(None) => {}
            Err(error) => found.damaged.push(error),
        }
    }
    found
}

struct Lease {
    end: SystemTime,
    digests: Vec<Digest>,
}

/// The lease in a file; `None` where there is none. A damaged one ends when the longest one would that was set when it was
/// last written.
fn read(path: &Path, now: SystemTime) -> Result<Option<Lease>, Error> {
    let read = files::read_if_there(path).and_then(|text| text.map(|text| parse(path, &text)).transpose());
    let error = match read {
        Ok(lease) => return Ok(lease.map(|(end, digests)| Lease { end, digests })),
        Err(error) => error,
    };
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    match modified.ok().and_then(|modified| modified.checked_add(LONGEST_LEASE)) {
        Some(end) if end < now => Ok(Some(Lease { end, digests: Vec::new() })),
        _ => Err(error),
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
