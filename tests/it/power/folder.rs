//! A folder of the disk model: its names at the last sync, and all changes since.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::disk::ObjectId;
use super::loss::{Loss, Random};

/// The entries of a folder.
pub(super) type Entries = BTreeMap<OsString, ObjectId>;

/// A change of the names in one folder. A move between two folders is a change of each.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// Adds a name, or replaces its object.
    Add {
        name: OsString,
        object: ObjectId,
    },
    Remove {
        name: OsString,
    },
    /// An atomic rename: a power cut leaves exactly one of the two names.
    Rename {
        from: OsString,
        to: OsString,
        object: ObjectId,
    },
}

impl Change {
    fn apply(&self, entries: &mut Entries) {
        match self {
            Self::Add { name, object } => {
                entries.insert(name.clone(), *object);
            }
            Self::Remove { name } => {
                entries.remove(name);
            }
            Self::Rename { from, to, object } => {
                entries.remove(from);
                entries.insert(to.clone(), *object);
            }
        }
    }
}

/// Invariant: `current` is `durable` with all of `pending` applied in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Folder {
    durable: Entries,
    current: Entries,
    pending: Vec<Change>,
}

impl Folder {
    /// Adds an entry that existed before the recording.
    pub(super) fn add_durable(&mut self, name: OsString, object: ObjectId) {
        self.durable.insert(name.clone(), object);
        self.current.insert(name, object);
    }

    pub(super) fn get(&self, name: &OsStr) -> Option<ObjectId> {
        self.current.get(name).copied()
    }

    /// Whether one of the entries is the object.
    pub(super) fn names(&self, object: ObjectId) -> bool {
        self.current.values().any(|named| *named == object)
    }

    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.current);
        self.pending.clear();
    }

    /// Returns the entries after a power cut. `object` is the folder's number on its disk.
    pub(super) fn entries(&self, loss: Loss, object: usize) -> Cow<'_, Entries> {
        match loss {
            Loss::Everything | Loss::Names => Cow::Borrowed(&self.durable),
            Loss::Nothing | Loss::Data | Loss::Zeros => Cow::Borrowed(&self.current),
            Loss::Random(seed) => {
                let kept = Random::of(seed, object).below(self.pending.len() + 1);
                let mut entries = self.durable.clone();
                self.pending.iter().take(kept).for_each(|change| change.apply(&mut entries));
                Cow::Owned(entries)
            }
        }
    }
}
