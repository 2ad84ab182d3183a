//! The disk store: blobs under their digest, ingests under their id, tags, leases and a derived index.
//!
//! ```text
//! HOME/
//!   version                         the number of this format
//!   lock                            held while the store is open
//!   blobs/sha256/ab/ab12…           committed; read-only; content matches the name
//!   ingest/<id>/{data,meta}         resumable, invisible to readers; no meta where the id is the digest
//!   tags/<host>/<repository>/:<tag> one line: the digest of a manifest (a root of garbage collection)
//!   links/<host>/<repository>/…      what a registry's clients put there (roots too)
//!   prompts                             what was typed in `lode run`; commands write it
//!   history/<host>/<repository>/:<tag>  a line per change; the last version before the current one is a root
//!   pins/<host>/<repository>/:<tag>     empty: the tag is not to be removed
//!   damaged/<hex>                   blobs that were found damaged; nobody reads them
//!   leases/<id>                     digests and an expiry (a root until then)
//!   used/sha256-ab12…               empty: when the model of that manifest was last used
//!   derived/sha256-ab12….<version>  what was made of a blob for those who map it; made again where it is not there
//!   index/, index.seal              sled; derived from the above
//!   index.journal                   short notes, for an index that is made anew
//!   tmp/                            files on their way to their names
//! ```
//!
//! A tag's file name begins with a colon, which no part of a repository can: `a` with the tag `b` and the repository
//! `a/b` do not collide.
//!
//! # Invariants
//! - A file below `blobs/` is complete, verified and synced: it got there by rename.
//! - Nothing is acknowledged before it would survive a power cut.
//! - In a store that cannot be written nothing changes: it has no lock, and `index`, `index.journal`, `index.seal`, `used`, `derived` and `tmp` are in
//!   a folder of the process.
//! - The index is a cache of what files say: nothing fails because it does, and what is known from it alone is only used to keep
//!   more.
//! - What cannot be read costs what it names, and nothing else: the rest is listed, and kept from collection as far as it may
//!   be what it led to.
//! - The store knows bytes. What refers to what is told to it ([`Store::describe`], the argument of
//!   [`Store::collect`]).
//!
//! # After a crash
//! Ingests stay and can be resumed. The folders that names are in are synced when the store is next opened, so that what is
//! found is durable. A blob that nothing refers to stays until the next collection.
//!
//! # Concurrency
//! Any number of readers; one writer per ingest; one collector at a time, which works beside everybody else (`gate`). The
//! methods block on the disk; the roles of [`content`] are implemented on threads made for that.

mod blobs;
mod collect;
pub mod crash;
mod derived;
mod error;
mod files;
mod gate;
mod history;
mod index;
mod ingest;
mod layout;
mod leases;
mod links;
mod lock;
mod mark;
mod names;
mod pins;
mod placing;
mod promises;
mod read_only;
mod rebuild;
mod roles;
#[cfg(all(test, feature = "schedules"))]
mod schedules;
mod sync;
mod tags;
mod usage;
mod used;
mod verify;
mod version;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use blobs::BlobFile;
pub use collect::{Collectable, Collected, Leased, PutOff};
pub use crash::CrashPoint;
pub use error::Error;
pub use gate::{Guard, Hold};
pub use history::{HistoryEntry, KEPT_VERSIONS};
pub use ingest::IngestFile;
pub use leases::LeaseId;
pub use links::{BLOB_LINK_LIFE, LinkKind, LinkedDocument};
pub use mark::Children;
pub use rebuild::{Description, Rebuilt};
pub use tags::TagEntry;
pub use usage::IngestEntry;
pub use verify::Verified;
pub use version::FORMAT_VERSION;

use index::Index;
use layout::Layout;
use lock::Lock;
use sync::atomic::AtomicU64;
use sync::{Mutex, MutexGuard, PoisonError};

/// A content store on disk. Clones share it; the lock is released with the last one.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    layout: Layout,
    index: Index,
    held: ingest::Held,
    gate: gate::Gate,
    /// Held by who fills the index.
    mending: Mutex<()>,
    /// Held by the one collector.
    collection: Mutex<()>,
    placing: placing::Placing,
    promises: promises::Promises,
    /// Held while a tag, history or pin is written or removed, a lease written, or a link removed: they share folders, and writers of one
    /// name a temporary file.
    /// Whoever also looks at promises or the gate takes this first, then promises, then the gate.
    names: Mutex<()>,
    /// Files that were derived so far: their temporary names.
    derivations: AtomicU64,
    crash_at: Option<CrashPoint>,
    /// None where the store cannot be written.
    _lock: Option<Lock>,
    /// Where the store cannot be written.
    notes: Option<read_only::Notes>,
}

/// How to open a store.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the index and derived files of a read-only store are made; the system's folder for temporary files where none is named.
    pub temporary: Option<PathBuf>,
    /// Kills the process at a point of the commit path: for tests of what a crash leaves.
    pub crash_at: Option<CrashPoint>,
}

impl Store {
    /// Opens the store at `home`, making it where there is none. One that cannot be written can be read.
    ///
    /// # Errors
    /// [`Error::Locked`] where another process has it open, [`Error::Newer`] where a newer program has made it. An index that
    /// is damaged or cannot be made is no error: [`Store::mend_index`] tries again.
    pub fn open(home: &Path, options: Options) -> Result<Self, Error> {
        // Nothing of a store that cannot be read is touched.
        version::check(home, &home.join(layout::VERSION))?;
        if Self::is_read_only_at(home) {
            return Self::open_read_only(home, options);
        }
        let (layout, is_new) = Layout::create(home)?;
        let lock = Lock::acquire(&layout.lock_file())?;
        // Somebody may have made it between the two.
        let lacks_version = version::check(layout.home(), &layout.version_file())?;
        layout.clear_temporary()?;
        if lacks_version {
            version::write(layout.home(), &layout.version_file(), &layout.temporary())?;
        }
        let (index, closed) = Index::open(&layout);
        // The last process may have died between giving a name and syncing it: what is found has to be durable.
        let unsynced = if closed || is_new { Vec::new() } else { layout.sync_names() };
        let store = Self::of(Inner::new(layout, index, options.crash_at, Some(lock), None));
        store.0.placing.mistrust(unsynced);
        Ok(store)
    }

    fn open_read_only(home: &Path, options: Options) -> Result<Self, Error> {
        read_only::check_unused(home)?;
        let notes = read_only::Notes::create(&options.temporary.unwrap_or_else(std::env::temp_dir))?;
        let layout = Layout::read_only(home, notes.path())?;
        let (index, _) = Index::open(&layout);
        Ok(Self::of(Inner::new(layout, index, options.crash_at, None, Some(notes))))
    }

    fn of(inner: Inner) -> Self {
        let store = Self(Arc::new(inner));
        if let Err(error) = store.begin_uses(SystemTime::now()) {
            tracing::warn!("when models were used is not known, and cannot be noted now: {error}");
        }
        store
    }

    /// The id of the process that has the store at `home` open; `None` where none has.
    pub fn holder(home: &Path) -> Result<Option<u32>, Error> {
        lock::holder(&home.join("lock"))
    }

    /// The folder of the store.
    pub fn home(&self) -> &Path {
        self.0.layout.home()
    }

    /// Where the bytes of a blob are, whether they are there or not. For mapping; blobs never change.
    pub fn path(&self, digest: &content::Digest) -> PathBuf {
        self.0.layout.blob(digest)
    }

    /// Bytes that can still be written to the file system of the store.
    pub fn free_space(&self) -> Result<u64, Error> {
        let stat = rustix::fs::statvfs(self.home()).map_err(|e| Error::io("read the free space of", self.home(), e))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        // It protects files, which a panic leaves as a crash would.
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self, point: CrashPoint) {
        if self.0.crash_at == Some(point) {
            crash::kill();
        }
    }
}

impl Inner {
    fn new(
        layout: Layout,
        index: Index,
        crash_at: Option<CrashPoint>,
        lock: Option<Lock>,
        notes: Option<read_only::Notes>,
    ) -> Self {
        Self {
            layout,
            index,
            held: ingest::Held::default(),
            gate: gate::Gate::default(),
            mending: Mutex::default(),
            collection: Mutex::default(),
            placing: placing::Placing::default(),
            promises: promises::Promises::default(),
            names: Mutex::default(),
            derivations: AtomicU64::default(),
            crash_at,
            _lock: lock,
            notes,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a seal the next start syncs what could not be synced.
        if self.placing.is_settled() {
            self.index.close();
        }
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests;
