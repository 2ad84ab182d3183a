//! Earlier versions of tags: `history/<host>/<repository>/:<tag>`, a line per change, the newest
//! last.
//!
//! A line has the time of the change (Unix time in seconds), a space and the digest. The newest
//! line is written before the tag is set. After a crash it may record a change that did not happen;
//! only the tag itself states its current digest.
//!
//! The last version before the current one is kept from collection ([`Names::kept_versions`]), so
//! that a user can always return to it. Older versions are only listed.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use content::Digest;

use crate::{Error, Names, Store, files, name_table};

/// Number of earlier versions that a collection keeps.
pub const KEPT_VERSIONS: usize = 1;
/// Maximum number of changes that are recorded for each tag.
const LONGEST: usize = 50;

/// A current or earlier version of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The manifest.
    pub digest: Digest,
    /// The time since which the tag named this version, to the second.
    pub since: SystemTime,
}

impl Names<'_> {
    /// The versions of a tag, the oldest first. Empty if there is no such tag.
    pub fn history(&self, name: &str) -> Result<Vec<HistoryEntry>, Error> {
        read(&name_table::path(&self.0.0.layout.histories(), name)?)
    }

    /// The earlier versions of a tag that are kept from collection, the newest first.
    pub fn kept_versions(&self, name: &str) -> Result<Vec<Digest>, Error> {
        // A history without a tag is left by a crash during a removal.
        let Some(current) = self.0.names().resolve(name)? else { return Ok(Vec::new()) };
        let (history, mut kept) = (self.0.names().history(name)?, Vec::new());
        // Entries after the current one never took effect: their tag was not set.
        let past = history.iter().rposition(|entry| entry.digest == current).unwrap_or(history.len());
        for entry in history[..past].iter().rev() {
            let old = entry.digest != current && !kept.contains(&entry.digest);
            // A version whose manifest is gone is not kept.
            if old && self.0.blobs().size(&entry.digest)?.is_some() {
                kept.push(entry.digest);
            }
            if kept.len() == KEPT_VERSIONS {
                break;
            }
        }
        Ok(kept)
    }

    /// All tags that have kept versions, with these versions. Histories that cannot be read are
    /// logged and left out.
    pub fn all_kept_versions(&self) -> Vec<(String, Vec<Digest>)> {
        let mut all = Vec::new();
        for name in name_table::walk(&self.0.0.layout.histories()).tags() {
            match self.0.names().kept_versions(&name) {
                Ok(kept) if kept.is_empty() => {}
                Ok(kept) => all.push((name, kept)),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        all
    }

    /// Forgets every version of a tag but the current one, so that a collection may delete the
    /// blobs that only earlier versions need.
    pub fn forget_versions(&self, name: &str) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let path = name_table::path(&self.0.0.layout.histories(), name)?;
        let _names = self.0.lock_names();
        let current = self.0.names().resolve(name)?;
        let last = self.0.names().history(name)?.into_iter().rfind(|entry| Some(entry.digest) == current);
        match last {
            Some(entry) => self.0.write_named("history", name, &path, &text(&[entry])),
            None => self.0.remove_named(&self.0.0.layout.histories(), &path).map(drop),
        }
    }
}

impl Store {
    /// Records that `name` is about to name `digest`. The caller holds the lock of names.
    pub(crate) fn record_change(&self, name: &str, digest: &Digest, now: SystemTime) -> Result<(), Error> {
        // A damaged history must not stop a pull; it is replaced by a new one.
        let mut entries = match self.names().history(name) {
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!("{error}; a new history begins");
                Vec::new()
            }
            other => other?,
        };
        // A damaged tag is about to be replaced.
        let current = match self.names().resolve(name) {
            Err(Error::Damaged { .. }) => None,
            other => other?,
        };
        let newest = entries.last().map(|entry| entry.digest);
        if current == Some(*digest) && newest == current {
            return Ok(());
        }
        // The tag is older than its history, or the newest entry never took effect.
        entries.extend(current.filter(|_| newest != current).map(|digest| HistoryEntry { digest, since: now }));
        entries.extend((current != Some(*digest)).then_some(HistoryEntry { digest: *digest, since: now }));
        let surplus = entries.len().saturating_sub(LONGEST);
        let path = name_table::path(&self.0.layout.histories(), name)?;
        self.write_named("history", name, &path, &text(&entries[surplus..]))
    }

    /// Removes the history of a tag. The caller holds the lock of names.
    pub(crate) fn remove_history(&self, name: &str) -> Result<(), Error> {
        let root = self.0.layout.histories();
        self.remove_named(&root, &name_table::path(&root, name)?).map(drop)
    }
}

/// Reads a history file; empty if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Vec<HistoryEntry>, Error> {
    let Some(text) = files::read_if_there(path)? else { return Ok(Vec::new()) };
    let entry = |line: &str| {
        let (second, digest) = line.split_once(' ')?;
        let since = UNIX_EPOCH.checked_add(Duration::from_secs(second.parse().ok()?))?;
        Some(HistoryEntry { digest: digest.parse().ok()?, since })
    };
    let damaged = |line: &str| Error::Damaged {
        path: path.to_owned(),
        reason: format!("the line {line:?} is not `SECOND DIGEST`; remove the line or the file"),
    };
    text.lines().map(|line| entry(line).ok_or_else(|| damaged(line))).collect()
}

fn text(entries: &[HistoryEntry]) -> String {
    let second = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let lines: Vec<String> =
        entries.iter().map(|entry| format!("{} {}\n", second(entry.since), entry.digest)).collect();
    lines.concat()
}
