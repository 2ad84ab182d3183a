//! A folder of the modelled disk: which names it had at its last sync, and each change of them since.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::disk::ObjectId;
use super::loss::{Loss, Random};

/// What is in a folder.
pub(super) type Entries = BTreeMap<OsString, ObjectId>;

/// A change of the names in one folder. One that moves between two folders is a change of each.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// What had the name before is no longer in the folder.
    Add {
        name: OsString,
        object: ObjectId,
    },
    Remove {
        name: OsString,
    },
    /// Both at once: a power cut leaves one of the two names.
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
    /// Adds what was there before anything was recorded.
    pub(super) fn add_durable(&mut self, name: OsString, object: ObjectId) {
        self.durable.insert(name.clone(), object);
        self.current.insert(name, object);
    }

    pub(super) fn get(&self, name: &OsStr) -> Option<ObjectId> {
        self.current.get(name).copied()
    }

    /// Whether something in it is the object.
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

    /// What is in it after a power cut. `object` is the number of the folder on its disk.
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
