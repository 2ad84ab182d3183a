//! Leases: blobs that nothing refers to yet, and that a collection must not delete for a while.
//!
//! A client that uploads blobs and then creates a model from them needs a lease in between. A lease
//! is a file: its expiry (Unix time in seconds), then one digest a line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use content::{Digest, IngestId};

use crate::{Error, Leases, Store, files};

/// Maximum duration of a lease. Longer requests are shortened to it.
const LONGEST_LEASE: Duration = Duration::from_hours(24 * 7);

/// The name of a lease, with the same alphabet as the id of an ingest.
pub type LeaseId = IngestId;

impl Leases<'_> {
    /// Protects `digests` until `until`. An existing lease with this id is replaced.
    pub fn set(&self, id: &LeaseId, digests: &[Digest], until: SystemTime) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let latest = SystemTime::now().checked_add(LONGEST_LEASE).unwrap_or(until);
        let end = until.min(latest).duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        for digest in digests {
            self.0.0.collection_lock.touch(digest);
        }
        self.0.settle()?;
        let lines: Vec<String> = [end.to_string()].into_iter().chain(digests.iter().map(ToString::to_string)).collect();
        let _names = self.0.lock_names();
        let temporary = self.0.0.layout.temporary().join(format!("lease-{id}"));
        files::write_synced(&temporary, lines.join("\n").as_bytes())?;
        let path = self.0.0.layout.leases().join(id.as_str());
        fs::rename(&temporary, &path).map_err(|e| Error::io("set the lease", &path, e))?;
        self.0.0.pending_renames.sync(&self.0.0.layout.leases())
    }

    /// The digests of a lease, even if it has expired; none if there is no such lease.
    pub fn get(&self, id: &LeaseId) -> Result<Vec<Digest>, Error> {
        let path = self.0.0.layout.leases().join(id.as_str());
        let Some(text) = files::read_if_there(&path)? else { return Ok(Vec::new()) };
        Ok(parse(&path, &text)?.1)
    }

    /// Ends a lease early and returns whether it existed.
    pub fn end(&self, id: &LeaseId) -> Result<bool, Error> {
        self.0.ensure_writable()?;
        files::remove(&self.0.0.layout.leases().join(id.as_str()))
    }
}

impl Store {
    /// Removes an expired lease, unless it was renewed meanwhile.
    pub(crate) fn remove_ended_lease(&self, path: &Path, now: SystemTime) -> Result<(), Error> {
        let _names = self.lock_names();
        if read(path, now)?.is_some_and(|lease| lease.end < now) {
            files::remove(path)?;
        }
        Ok(())
    }
}

/// The contents of the folder of leases.
#[derive(Debug, Default)]
pub(crate) struct FoundLeases {
    /// Digests of leases that have not expired, with the expiry.
    pub(crate) digests: Vec<(Digest, SystemTime)>,
    /// The files of expired leases.
    pub(crate) ended: Vec<PathBuf>,
    /// Errors of files that cannot be read as a lease.
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

/// Reads the lease in a file; `None` if the file does not exist. A damaged file counts as a lease
/// of the maximum duration that began when the file was last written.
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
