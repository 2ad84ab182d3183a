//! What a tag named before: `history/<host>/<repository>/:<tag>`, a line per change, the newest last.
//!
//! A line is the second of the change (Unix time), a space and the digest. The newest line is written before the tag is
//! set, so after a crash it may tell of a change that did not happen: what the tag names is said by the tag alone.
//!
//! The last version before the current one is kept from collection ([`Store::kept_versions`]), so that going back to it
//! always works. Older ones are only remembered.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use content::Digest;

use crate::{Error, Store, files, names};

/// Versions before the current one that a collection leaves alone.
pub const KEPT_VERSIONS: usize = 1;
/// Changes that are remembered for each tag.
const LONGEST: usize = 50;

/// A version that a tag named, or names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The manifest.
    pub digest: Digest,
    /// Since when, to the second.
    pub since: SystemTime,
}

impl Store {
    /// The versions of a tag, the oldest first. Empty where there is no such tag.
    pub fn history(&self, name: &str) -> Result<Vec<HistoryEntry>, Error> {
        read(&names::path(&self.0.layout.histories(), name)?)
    }

    /// The versions of a tag before the current one that are kept from collection, the newest first.
    pub fn kept_versions(&self, name: &str) -> Result<Vec<Digest>, Error> {
        // A history without a tag is what a crash left of a removal.
        let Some(current) = self.resolve_tag(name)? else { return Ok(Vec::new()) };
        let (history, mut kept) = (self.history(name)?, Vec::new());
        // What stands after the current one has not happened: its tag was not set.
        let past = history.iter().rposition(|entry| entry.digest == current).unwrap_or(history.len());
        for entry in history[..past].iter().rev() {
            let old = entry.digest != current && !kept.contains(&entry.digest);
            // Nothing holds on to a version whose manifest is gone.
            if old && self.look(&entry.digest)?.is_some() {
                kept.push(entry.digest);
            }
            if kept.len() == KEPT_VERSIONS {
                break;
            }
        }
        Ok(kept)
    }

    /// Every tag with the versions of it that are kept, where there are some.
    /// One that cannot be read is logged and left out.
    pub fn all_kept_versions(&self) -> Vec<(String, Vec<Digest>)> {
        let mut all = Vec::new();
        for name in names::walk(&self.0.layout.histories()).tags() {
            match self.kept_versions(&name) {
                Ok(kept) if kept.is_empty() => {}
                Ok(kept) => all.push((name, kept)),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        all
    }

    /// Forgets every version of a tag but the current one, so that a collection may delete what only they had.
    pub fn forget_versions(&self, name: &str) -> Result<(), Error> {
        self.ensure_writable()?;
        let path = names::path(&self.0.layout.histories(), name)?;
        let _names = self.names();
        let current = self.resolve_tag(name)?;
        let last = self.history(name)?.into_iter().rfind(|entry| Some(entry.digest) == current);
        match last {
            Some(entry) => self.write_named("history", name, &path, &text(&[entry])),
            None => self.remove_named(&self.0.layout.histories(), &path).map(drop),
        }
    }

    /// Notes that `name` is about to name `digest`. The caller holds the lock of names.
    pub(crate) fn record_change(&self, name: &str, digest: &Digest, now: SystemTime) -> Result<(), Error> {
        // A damaged history must not stop a pull: a new one begins.
        let mut entries = match self.history(name) {
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!("{error}; a new history begins");
                Vec::new()
            }
            other => other?,
        };
        // Where the tag is damaged it is being mended.
        let current = match self.resolve_tag(name) {
            Err(Error::Damaged { .. }) => None,
            other => other?,
        };
        let newest = entries.last().map(|entry| entry.digest);
        if current == Some(*digest) && newest == current {
            return Ok(());
        }
        // A tag from before there were histories, or one whose last change did not happen.
        entries.extend(current.filter(|_| newest != current).map(|digest| HistoryEntry { digest, since: now }));
        entries.extend((current != Some(*digest)).then_some(HistoryEntry { digest: *digest, since: now }));
        let surplus = entries.len().saturating_sub(LONGEST);
        let path = names::path(&self.0.layout.histories(), name)?;
        self.write_named("history", name, &path, &text(&entries[surplus..]))
    }

    /// Removes the history of a tag. The caller holds the lock of names.
    pub(crate) fn remove_history(&self, name: &str) -> Result<(), Error> {
        let root = self.0.layout.histories();
        self.remove_named(&root, &names::path(&root, name)?).map(drop)
    }
}

/// The history in a file; empty where it is not there.
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
