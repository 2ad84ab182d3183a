//! The index: a cache of what can be read again from the files, only slower. It may fail, and nobody notices.
//!
//! # States
//! ```text
//! open, filled ──an error or a panic of sled──▶ away ──mend──▶ open, not filled ──filled──▶ open, filled
//! ```
//! While it is away, what is asked is answered as if nothing were known, and what is told is forgotten, but for which
//! documents have to be described. [`Store::mend_index`](crate::Store::mend_index) makes it anew; whoever owns the daemon's
//! background calls it. Until it is filled, it says of what refers to something that it does not know.
//!
//! # After a crash
//! The files are those of a database that was not closed, and not trusted (`seal`): it is made anew. Short notes are in the
//! `journal` as well.

mod database;
mod journal;
mod seal;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use content::Digest;

use crate::layout::Layout;
use crate::{Description, Error, files};
use database::Database;
use journal::Journal;

#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    seal: PathBuf,
    journal: Journal,
    /// For the seal on its way.
    temporary: PathBuf,
    /// `None` while it is away.
    database: RwLock<Option<Database>>,
    filled: AtomicBool,
    /// How often it went away: what was begun to be filled before is not what is to be filled now.
    failures: AtomicU64,
    /// Documents that it lacks, and that nothing may name yet.
    missed: Mutex<HashSet<Digest>>,
    /// What it last failed with, so that the log has each reason once.
    reason: Mutex<Option<String>>,
}

impl Index {
    /// Opens the index, where it is as it was closed. Says whether it was: else the last process crashed, or its files are
    /// damaged.
    pub(crate) fn open(layout: &Layout) -> (Self, bool) {
        let (path, seal) = (layout.index(), layout.index_seal());
        let sealed = seal::broken(&seal, &path);
        let index = Self {
            path,
            seal,
            journal: Journal::new(layout.index_journal(), journal::LONGEST),
            temporary: layout.temporary().join("index-seal"),
            database: RwLock::new(None),
            filled: AtomicBool::new(sealed),
            failures: AtomicU64::new(0),
            missed: Mutex::default(),
            reason: Mutex::default(),
        };
        let opened = if sealed { attempt(|| Database::open(&index.path)) } else { index.make() };
        match opened {
            Ok(database) => *index.database.write().unwrap_or_else(PoisonError::into_inner) = Some(database),
            Err(reason) => index.fail(&reason, 0),
        }
        (index, sealed)
    }

    /// Closes and seals it, so that the next process finds it again.
    pub(crate) fn close(&self) {
        let database = self.database.write().unwrap_or_else(PoisonError::into_inner).take();
        let whole = self.filled.load(Ordering::SeqCst);
        let Some(database) = database else { return };
        let journal = &self.journal;
        let closed = attempt(move || {
            database.flush()?;
            drop(database);
            Ok(())
        });
        // One that is not filled would be taken to know everything.
        let seal = || {
            seal::set(&self.seal, &self.path, &self.temporary)?;
            journal.clear()
        };
        let seal = || seal().map_err(|e| e.to_string());
        let sealed = closed.and_then(|()| if whole { seal() } else { Ok(()) });
        if let Err(reason) = sealed {
            tracing::warn!(reason, "the index is not closed; the next start fills it again");
        }
    }

    /// Whether the index is there and was told of all documents.
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::SeqCst)
    }

    /// Makes it anew where it is away, so that it can be filled.
    pub(crate) fn mend(&self) -> Result<(), Error> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if database.is_none() {
            match self.make() {
                Ok(made) => *database = Some(made),
                Err(reason) => {
                    drop(database);
                    self.note_reason(&reason);
                    return Err(Error::Index(reason));
                }
            }
        }
        Ok(())
    }

    /// Drops everything, to be filled again.
    pub(crate) fn reset(&self) {
        self.put_away(None);
    }

    /// Tells apart what is being filled now from what was before it failed.
    pub(crate) fn generation(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// Says that everything was described since that generation began. Not where something has come meanwhile.
    pub(crate) fn set_filled(&self, generation: u64) {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let missed = self.missed();
        if missed.is_empty() && database.is_some() && self.generation() == generation {
            self.filled.store(true, Ordering::SeqCst);
            if self.reason.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
                tracing::info!("the index works again");
            }
        }
    }

    /// The documents that it is known to lack.
    pub(crate) fn take_missed(&self) -> HashSet<Digest> {
        std::mem::take(&mut *self.missed())
    }

    /// Notes that it lacks a document: it is to be filled.
    pub(crate) fn miss(&self, document: &Digest) {
        let mut missed = self.missed();
        missed.insert(*document);
        self.filled.store(false, Ordering::SeqCst);
    }

    /// A document has just got a name. It was described before, perhaps to a database that is not there any more.
    pub(crate) fn expect(&self, document: &Digest) {
        if self.edges(document).is_none() {
            self.miss(document);
        }
    }

    fn missed(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn describe(&self, digest: &Digest, description: &Description) {
        let described = self.with(|database| {
            if let Some(subject) = &description.subject {
                database.record_subject(digest, subject)?;
            }
            for (kind, note) in &description.notes {
                database.set_note(kind, digest, note)?;
            }
            database.record_edges(digest, &description.children)
        });
        if described.is_none() {
            self.miss(digest);
        }
    }

    /// Forgets a blob and all that was known of it.
    pub(crate) fn remove_blob(&self, digest: &Digest) {
        self.with(|database| database.remove_blob(digest));
    }

    /// Forgets the notes about a blob.
    pub(crate) fn remove_notes(&self, digest: &Digest) {
        self.with(|database| database.remove_notes(digest));
    }

    /// `None` where it does not know.
    pub(crate) fn about(&self, subject: &Digest) -> Option<Vec<Digest>> {
        self.with_all(|database| database.about(subject))
    }

    pub(crate) fn edges(&self, parent: &Digest) -> Option<Vec<Digest>> {
        self.with(|database| database.edges(parent)).flatten()
    }

    /// `None` where it does not know.
    pub(crate) fn referrers(&self, child: &Digest) -> Option<Vec<Digest>> {
        self.with_all(|database| database.referrers(child))
    }

    pub(crate) fn set_note(&self, kind: &str, about: &Digest, note: &[u8]) {
        self.journal.add(kind, about, Some(note));
        self.with(|database| database.set_note(kind, about, note));
    }

    pub(crate) fn remove_note(&self, kind: &str, about: &Digest) {
        self.journal.add(kind, about, None);
        self.with(|database| database.remove_note(kind, about));
    }

    pub(crate) fn note(&self, kind: &str, about: &Digest) -> Option<Vec<u8>> {
        self.with(|database| database.note(kind, about)).flatten()
    }

    /// Asks the database where it knows of all documents: it does when it is asked, not only afterwards.
    fn with_all<T>(&self, ask: impl FnOnce(&Database) -> sled::Result<T>) -> Option<T> {
        self.with(|database| if self.is_filled() { ask(database).map(Some) } else { Ok(None) }).flatten()
    }

    /// Asks the database; `None` where it is away or fails now.
    fn with<T>(&self, ask: impl FnOnce(&Database) -> sled::Result<T>) -> Option<T> {
        let (asked, generation) = {
            let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
            let database = database.as_ref()?;
            (attempt(|| ask(database)), self.generation())
        };
        asked.inspect_err(|reason| self.fail(reason, generation)).ok()
    }

    /// Puts the database of that generation away, which failed.
    pub(crate) fn fail(&self, reason: &str, generation: u64) {
        metrics::counter!("lode_index_failures_total").increment(1);
        self.note_reason(reason);
        self.put_away(Some(generation));
    }

    fn note_reason(&self, reason: &str) {
        let mut known = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() != Some(reason) {
            tracing::warn!(reason, "the index failed; it is made anew, and nothing is lost");
            *known = Some(reason.to_owned());
        }
    }

    /// Puts the database away; only that of a generation, where one is named: another may have come in its place.
    fn put_away(&self, generation: Option<u64>) {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if generation.is_some_and(|generation| generation != self.generation()) {
            return;
        }
        self.filled.store(false, Ordering::SeqCst);
        self.failures.fetch_add(1, Ordering::SeqCst);
        let failed = database.take();
        // What sled does when it ends may fail as well, and does not matter any more.
        let _ = attempt(move || {
            drop(failed);
            Ok(())
        });
    }

    /// A database in the place of what is there, with the notes of the journal.
    fn make(&self) -> Result<Database, String> {
        files::remove_any(&self.path).map_err(|e| e.to_string())?;
        attempt(|| {
            let database = Database::open(&self.path)?;
            let mut told = Ok(());
            self.journal.notes(|kind, about, note| {
                let tell = || {
                    note.map_or_else(|| database.remove_note(kind, about), |note| database.set_note(kind, about, note))
                };
                told = std::mem::replace(&mut told, Ok(())).and_then(|()| tell());
            });
            told.map(|()| database)
        })
    }
}

/// Lets sled do something. Its assertions are errors like others: what it holds is only a cache.
fn attempt<T>(work: impl FnOnce() -> Result<T, sled::Error>) -> Result<T, String> {
    match std::panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("sled panicked: {}", text.unwrap_or("it says nothing")))
        }
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests;
