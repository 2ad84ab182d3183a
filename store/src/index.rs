//! The index: a cache of facts that can also be read from the files, more slowly. Its failures are
//! hidden from callers.
//!
//! # States
//! ```text
//! open, filled ──an error or a panic of sled──▶ unavailable ──mend_index──▶ open, not filled
//! open, not filled ──every document described──▶ open, filled
//! ```
//! While the index is unavailable, queries return nothing and updates are dropped. Only the
//! documents that must be described again are remembered.
//! [`Store::mend_index`](crate::Store::mend_index) recreates it; the background task of the daemon
//! calls that. Until the index is filled, queries for referrers return `None`, which means unknown.
//!
//! The database is opened at its first use, because all of its files are read to check the seal.
//! Until then the index counts as filled.
//!
//! # After a crash
//! The files belong to a database that was not closed, so they are not trusted (`seal`) and the
//! index is recreated. Short notes survive in the `journal`.

mod database;
mod journal;
mod seal;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use content::Digest;

use crate::layout::StoreLayout;
use crate::{Description, Error, files};
use database::Database;
use journal::Journal;
use seal::Seal;

#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    seal: PathBuf,
    journal: Journal,
    /// Temporary file for a new seal.
    temporary: PathBuf,
    /// The seal of a database that was not used since the start. Held while the seal is checked.
    sealed: Mutex<Option<Seal>>,
    /// Whether `sealed` is `Some`, without the lock.
    is_sealed: AtomicBool,
    /// `None` while the index is sealed or unavailable.
    database: RwLock<Option<Database>>,
    filled: AtomicBool,
    /// Number of failures. It detects a fill that began before the last failure.
    failures: AtomicU64,
    /// Documents that are missing in the index, perhaps without any name yet.
    missed: Mutex<HashSet<Digest>>,
    /// The last reason for a failure, so that the log has each reason once.
    reason: Mutex<Option<String>>,
}

impl Index {
    /// Opens the index. Returns whether the last process closed it; if not, that process crashed,
    /// and the index is recreated.
    pub(crate) fn open(layout: &StoreLayout) -> (Self, bool) {
        let sealed = seal::take(&layout.index_seal());
        let was_closed = sealed.is_some();
        let index = Self {
            sealed: Mutex::new(sealed),
            is_sealed: AtomicBool::new(was_closed),
            filled: AtomicBool::new(was_closed),
            ..Self::absent(layout)
        };
        if !was_closed {
            index.use_database(index.make());
        }
        (index, was_closed)
    }

    /// An index without a database, of a store that this process only reads beside its own.
    pub(crate) fn absent(layout: &StoreLayout) -> Self {
        Self {
            path: layout.index(),
            seal: layout.index_seal(),
            journal: Journal::new(layout.index_journal(), journal::LONGEST),
            temporary: layout.temporary().join("index-seal"),
            sealed: Mutex::new(None),
            is_sealed: AtomicBool::new(false),
            database: RwLock::new(None),
            filled: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            missed: Mutex::default(),
            reason: Mutex::default(),
        }
    }

    fn use_database(&self, opened: Result<Database, String>) {
        match opened {
            Ok(database) => *self.database.write().unwrap_or_else(PoisonError::into_inner) = Some(database),
            Err(reason) => self.fail(&reason, self.generation()),
        }
    }

    /// Opens the database if it was not used yet: as it is if its seal holds, else a new one.
    /// Other users of the index wait meanwhile.
    pub(crate) fn unseal(&self) {
        if !self.is_sealed.load(Ordering::Acquire) {
            return;
        }
        let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seal) = sealed.take() else { return };
        if seal.holds(&self.path) {
            self.use_database(attempt(|| Database::open(&self.path)));
        } else {
            self.filled.store(false, Ordering::SeqCst);
            self.use_database(self.make());
        }
        self.is_sealed.store(false, Ordering::Release);
    }

    /// Closes and seals the index, so that the next process can use it.
    pub(crate) fn close(&self) {
        if let Some(seal) = self.sealed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            if let Err(error) = seal.put_back(&self.seal, &self.temporary) {
                tracing::warn!("the index could not be sealed; the next start recreates it: {error}");
            }
            return;
        }
        let database = self.database.write().unwrap_or_else(PoisonError::into_inner).take();
        let whole = self.filled.load(Ordering::SeqCst);
        let Some(database) = database else { return };
        let journal = &self.journal;
        let closed = attempt(move || {
            database.flush()?;
            drop(database);
            Ok(())
        });
        // An index that is not filled must not be sealed: the next process would take it for
        // complete.
        let seal = || {
            seal::set(&self.seal, &self.path, &self.temporary)?;
            journal.clear()
        };
        let seal = || seal().map_err(|e| e.to_string());
        let sealed = closed.and_then(|()| if whole { seal() } else { Ok(()) });
        if let Err(reason) = sealed {
            tracing::warn!(reason, "the index could not be closed; the next start recreates it");
        }
    }

    /// Whether the index is open and has all documents.
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::SeqCst)
    }

    /// Recreates an unavailable index, so that it can be filled.
    pub(crate) fn mend(&self) -> Result<(), Error> {
        self.unseal();
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

    /// Drops the content; the index must be filled again.
    pub(crate) fn reset(&self) {
        self.unseal();
        self.put_away(None);
    }

    /// A number that changes with every failure. A fill compares it to detect one.
    pub(crate) fn generation(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// Marks the index as filled, unless it failed since this generation or a document became
    /// missing.
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

    /// Takes the documents that are known to be missing.
    pub(crate) fn take_missed(&self) -> HashSet<Digest> {
        std::mem::take(&mut *self.missed())
    }

    /// Records that a document is missing, so the index is no longer filled.
    pub(crate) fn miss(&self, document: &Digest) {
        let mut missed = self.missed();
        missed.insert(*document);
        self.filled.store(false, Ordering::SeqCst);
    }

    /// Checks a document that has just got a name. It was described earlier, perhaps to a database
    /// that has failed since.
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

    /// Forgets a blob and all facts about it.
    pub(crate) fn remove_blob(&self, digest: &Digest) {
        self.with(|database| database.remove_blob(digest));
    }

    /// Forgets the notes about a blob.
    pub(crate) fn remove_notes(&self, digest: &Digest) {
        self.with(|database| database.remove_notes(digest));
    }

    /// `None` if the index does not know.
    pub(crate) fn about(&self, subject: &Digest) -> Option<Vec<Digest>> {
        self.with_all(|database| database.about(subject))
    }

    pub(crate) fn edges(&self, parent: &Digest) -> Option<Vec<Digest>> {
        self.with(|database| database.edges(parent)).flatten()
    }

    /// `None` if the index does not know.
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

    /// Queries the database if it has all documents. The check is made under the lock of the query.
    fn with_all<T>(&self, ask: impl FnOnce(&Database) -> sled::Result<T>) -> Option<T> {
        self.with(|database| if self.is_filled() { ask(database).map(Some) } else { Ok(None) }).flatten()
    }

    /// Queries the database; `None` if it is unavailable or the query fails.
    fn with<T>(&self, ask: impl FnOnce(&Database) -> sled::Result<T>) -> Option<T> {
        self.unseal();
        let (asked, generation) = {
            let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
            let database = database.as_ref()?;
            (attempt(|| ask(database)), self.generation())
        };
        asked.inspect_err(|reason| self.fail(reason, generation)).ok()
    }

    /// Takes the database of this generation out of use after a failure.
    pub(crate) fn fail(&self, reason: &str, generation: u64) {
        metrics::counter!("lode_index_failures_total").increment(1);
        self.note_reason(reason);
        self.put_away(Some(generation));
    }

    fn note_reason(&self, reason: &str) {
        let mut known = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() != Some(reason) {
            tracing::warn!(reason, "the index failed and will be recreated; no data is lost");
            *known = Some(reason.to_owned());
        }
    }

    /// Takes the database out of use. With a generation, only if no other database has replaced it
    /// since.
    fn put_away(&self, generation: Option<u64>) {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if generation.is_some_and(|generation| generation != self.generation()) {
            return;
        }
        self.filled.store(false, Ordering::SeqCst);
        self.failures.fetch_add(1, Ordering::SeqCst);
        let failed = database.take();
        // Errors while sled closes the database do not matter any more.
        let _ = attempt(move || {
            drop(failed);
            Ok(())
        });
    }

    /// Creates a new database with the notes of the journal.
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

/// Runs an operation of sled. A failed assertion counts as an error: the database is only a cache.
fn attempt<T>(work: impl FnOnce() -> Result<T, sled::Error>) -> Result<T, String> {
    match std::panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("sled panicked: {}", text.unwrap_or("no message")))
        }
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests;
