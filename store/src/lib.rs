//! The disk store: blobs by digest, ingests by id, tags, leases and a derived index.
//!
//! ```text
//! HOME/
//!   version                             the version of this format
//!   lock                                locked while the store is open
//!   blobs/sha256/ab/ab12…               committed, read-only; matches its name
//!   ingest/<id>/{data,meta}             resumable, invisible; no `meta` if the id is the digest
//!   tags/<host>/<repository>/:<tag>     the digest of a manifest (a root of collection)
//!   links/<host>/<repository>/…         pushed by registry clients (roots too)
//!   prompts                             prompts typed in `lode run`; written by the command line
//!   history/<host>/<repository>/:<tag>  a line per change; the last old version is a root
//!   pins/<host>/<repository>/:<tag>     empty: the tag must not be removed
//!   damaged/<hex>                       damaged blobs; readers do not look here
//!   leases/<id>                         an expiry and digests (roots until then)
//!   used/sha256-ab12…                   empty; its time is the last use of the model
//!   tier/                               blobs that the tier has (`tiered`)
//!   extents/, adopted/                  blobs that lie in other files (`extents`)
//!   derived/sha256-ab12….<version>      made from a blob; made again if missing
//!   index/, index.seal                  the sled index, derived from the files above
//!   index.journal                       short notes that a recreated index replays
//!   tmp/                                temporary files before their rename
//! ```
//!
//! The file name of a tag begins with a colon, which no part of a repository can. So the tag `b` of
//! `a` and the repository `a/b` do not collide.
//!
//! # Invariants
//! - A file below `blobs/` is complete, verified and synced before it is renamed to there.
//! - A blob that lies in another file is read only while that file is as it was when it was hashed.
//! - A blob that only the tier has is listed in a file here. It left the disk after both the tier
//!   and that file were durable.
//! - An operation is acknowledged only when its result would survive a power cut.
//! - A root is never changed, not even by a collection (`roots`).
//! - A read-only store is never changed. It has no lock; `index`, `index.journal`, `index.seal`,
//!   `used`, `derived` and `tmp` are in a folder of the process.
//! - The index is a cache of the files. No operation fails because it does. A fact that is only in
//!   the index may prevent a deletion, never cause one.
//! - An unreadable file affects only the blobs that it refers to. All other entries are listed, and
//!   blobs that it may refer to are kept from collection.
//! - The store knows bytes, not documents. Callers supply the references of a document
//!   ([`Notes::describe`], the argument of [`Store::collect`]).
//!
//! # After a crash
//! Ingests stay and can be resumed. When the store is next opened, folders with names and blobs are
//! synced, so that every entry that is found is durable. An unreferenced blob stays until the next
//! collection.
//!
//! # Concurrency
//! Any number of readers; one writer per ingest; one collector at a time, which runs concurrently
//! with all other operations (`collection_lock`). The methods block on the disk. Async callers
//! use the roles of [`content`], which run the methods on threads for blocking work.

mod blobs;
mod clones;
mod collect;
mod collection_lock;
mod copies;
pub mod crash;
mod derived;
mod disk_holds;
mod durable_rename;
mod error;
mod extent_entry;
mod extents;
mod files;
mod folder_tier;
mod history;
mod index;
mod ingest;
mod layout;
mod leases;
mod links;
mod lock;
mod mark;
mod name_list;
mod name_table;
mod pieces;
mod pins;
mod promises;
mod reachable;
mod read_only;
mod rebuild;
mod roles;
mod roots;
#[cfg(all(test, feature = "schedules"))]
mod schedules;
mod shelves;
mod source_file;
mod sync;
mod tags;
mod tier_entry;
mod tiered;
mod usage;
mod used;
mod verify;
mod version;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

pub use blobs::BlobFile;
pub use clones::AdoptedFile;
pub use collect::{Collectable, Collected, Leased, Needed, PutOff};
pub use collection_lock::{Guard, Hold};
pub use crash::CrashPoint;
pub use disk_holds::DiskHold;
pub use error::Error;
pub use extents::BlobExtents;
pub use folder_tier::FolderTier;
pub use history::{HistoryEntry, KEPT_VERSIONS};
pub use ingest::IngestFile;
pub use leases::LeaseId;
pub use links::{BLOB_LINK_LIFE, LinkKind, LinkedDocument};
pub use mark::Children;
pub use rebuild::{Description, Rebuilt};
pub use source_file::{Extent, FileIdentity, SourceFile};
pub use tags::TagEntry;
pub use tier_entry::MAX_HEAD;
pub use tiered::Recall;
pub use usage::IngestEntry;
pub use verify::Verified;
pub use version::FORMAT_VERSION;

use index::Index;
use layout::StoreLayout;
use lock::Lock;
use sync::atomic::{AtomicBool, AtomicU64};
use sync::{Mutex, MutexGuard, PoisonError};

/// A content store on disk. Clones share it; dropping the last one releases the lock.
///
/// # Examples
///
/// ```
/// use lode_store::{Options, Store};
/// use content::{Expected, IngestId};
///
/// let home = tempfile::tempdir()?;
/// let store = Store::open(home.path(), Options::default())?;
/// let mut ingest = store.blobs().start_ingest(&IngestId::parse("import")?, Expected::Unknown)?;
/// ingest.append(b"hello")?;
/// let (digest, size) = ingest.commit()?;
/// assert_eq!(store.blobs().size(&digest)?, Some(size));
/// assert_eq!(store.blobs().read(&digest, 1024)?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

/// A reference to a store that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakStore(Weak<Inner>);

impl WeakStore {
    /// Returns the store, unless it was closed.
    pub fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(Store)
    }
}

#[derive(Debug)]
struct Inner {
    layout: StoreLayout,
    index: Index,
    active_ingests: ingest::ActiveIngests,
    collection_lock: collection_lock::CollectionLock,
    /// Held while the index is being filled.
    mending: Mutex<()>,
    /// Held by the running collection.
    collection: Mutex<()>,
    pending_renames: durable_rename::PendingRenames,
    name_list: name_list::NameList,
    promises: promises::Promises,
    /// Held while a tag, history, pin or lease is written, a tag, history or pin is removed, or a
    /// link is removed. These operations share folders, and writers of one name share a temporary
    /// file.
    ///
    /// Lock order: this lock, then promises, then the collection lock.
    names: Mutex<()>,
    /// Number of files derived so far, for the names of temporary files.
    derivations: AtomicU64,
    tier: tiered::AttachedTier,
    clones_in_use: clones::ClonesInUse,
    rechecked: Mutex<extents::RecheckedBlobs>,
    disk_holds: disk_holds::DiskHolds,
    crash_at: Option<CrashPoint>,
    /// More stores, which are only read, in the order in which they are read.
    roots: Vec<Store>,
    /// Whether this is a root of another store.
    is_root: bool,
    /// Whether the last look into this root failed, which was logged.
    is_skipped: AtomicBool,
    /// `None` if the store is read-only.
    _lock: Option<Lock>,
    /// `Some` if the store is read-only.
    notes: Option<read_only::NotesFolder>,
}

/// Options for opening a store.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Parent folder for the index and derived files of a read-only store. Default: the system's
    /// folder for temporary files.
    pub temporary: Option<PathBuf>,
    /// Folders of further stores that are read and never changed.
    pub roots: Vec<PathBuf>,
    /// Kills the process at a point of the commit path, for tests of crash recovery.
    pub crash_at: Option<CrashPoint>,
}

/// Blobs and ingests of a store.
#[derive(Clone, Copy, Debug)]
pub struct Blobs<'a>(&'a Store);

/// Names in a store: tags with their history and pins, and the links of registries.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a>(&'a Store);

/// Leases and promises: they protect digests from collection for a time.
#[derive(Clone, Copy, Debug)]
pub struct Leases<'a>(&'a Store);

/// Derived data of a store: the index, notes, times of use and derived files. It can be lost and
/// made again.
#[derive(Clone, Copy, Debug)]
pub struct Notes<'a>(&'a Store);

impl Store {
    /// Returns a reference that does not keep the store open.
    pub fn downgrade(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.0))
    }

    /// Returns the blobs and ingests.
    pub fn blobs(&self) -> Blobs<'_> {
        Blobs(self)
    }

    /// Returns the tags, histories, pins and links.
    pub fn names(&self) -> Names<'_> {
        Names(self)
    }

    /// Returns the leases.
    pub fn leases(&self) -> Leases<'_> {
        Leases(self)
    }

    /// Returns the index and other derived data.
    pub fn notes(&self) -> Notes<'_> {
        Notes(self)
    }

    /// Opens the store at `home`, and creates it if there is none. A store without write permission
    /// is opened for reading only.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has it open, [`Error::Newer`] if a newer version of
    /// Lode made it. A damaged index, or one that cannot be created, is no error:
    /// [`Store::mend_index`] tries again.
    pub fn open(home: &Path, options: Options) -> Result<Self, Error> {
        let Options { temporary, roots, crash_at } = options;
        // A store with an unsupported version must not be touched.
        version::check(home, &home.join(layout::VERSION))?;
        if Self::is_read_only_at(home) {
            return Self::open_read_only(home, temporary, &roots, crash_at);
        }
        let (layout, is_new) = StoreLayout::create(home)?;
        let lock = Lock::acquire(&layout.lock_file())?;
        // Another process may have created the store in between.
        let lacks_version = version::check(layout.home(), &layout.version_file())?;
        layout.clear_temporary()?;
        if lacks_version {
            version::write(layout.home(), &layout.version_file(), &layout.temporary())?;
        }
        let (index, closed) = Index::open(&layout);
        // The last process may have died between a rename and the sync: make all entries durable.
        let unsynced = if closed || is_new { Vec::new() } else { layout.sync_names() };
        let roots = Self::open_roots(layout.home(), &roots)?;
        let mut inner = Inner::new(layout, index, crash_at, Some(lock), None);
        inner.roots = roots;
        let store = Self::of(inner);
        store.0.pending_renames.mark_unsynced(unsynced);
        Ok(store)
    }

    fn open_read_only(
        home: &Path,
        temporary: Option<PathBuf>,
        roots: &[PathBuf],
        crash_at: Option<CrashPoint>,
    ) -> Result<Self, Error> {
        read_only::check_unused(home)?;
        let notes = read_only::NotesFolder::create(&temporary.unwrap_or_else(std::env::temp_dir))?;
        let layout = StoreLayout::read_only(home, notes.path())?;
        let (index, _) = Index::open(&layout);
        let roots = Self::open_roots(layout.home(), roots)?;
        let mut inner = Inner::new(layout, index, crash_at, None, Some(notes));
        inner.roots = roots;
        Ok(Self::of(inner))
    }

    fn of(inner: Inner) -> Self {
        let store = Self(Arc::new(inner));
        if let Err(error) = store.begin_uses(SystemTime::now()) {
            tracing::warn!("times of last use are unavailable and cannot be recorded: {error}");
        }
        store
    }

    /// The id of the process that has the store at `home` open; `None` if there is none.
    pub fn holder(home: &Path) -> Result<Option<u32>, Error> {
        lock::holder(&home.join("lock"))
    }

    /// The folder of the store.
    pub fn home(&self) -> &Path {
        self.0.layout.home()
    }

    /// Bytes that can still be written to the file system of the store.
    pub fn free_space(&self) -> Result<u64, Error> {
        let stat = rustix::fs::statvfs(self.home()).map_err(|e| Error::io("read the free space of", self.home(), e))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn lock_names(&self) -> MutexGuard<'_, ()> {
        // The lock protects files. A panic leaves them in the same state as a crash.
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self, point: CrashPoint) {
        if self.0.crash_at == Some(point) {
            crash::kill();
        }
    }
}

impl Blobs<'_> {
    /// The path where the blob's file is on the disk, or would be. Readers use [`Blobs::open`],
    /// whose file can be mapped: blobs never change.
    pub fn path(&self, digest: &content::Digest) -> PathBuf {
        self.0.0.layout.blob(digest)
    }
}

impl Inner {
    fn new(
        layout: StoreLayout,
        index: Index,
        crash_at: Option<CrashPoint>,
        lock: Option<Lock>,
        notes: Option<read_only::NotesFolder>,
    ) -> Self {
        Self {
            layout,
            index,
            active_ingests: ingest::ActiveIngests::default(),
            collection_lock: collection_lock::CollectionLock::default(),
            mending: Mutex::default(),
            collection: Mutex::default(),
            pending_renames: durable_rename::PendingRenames::default(),
            name_list: name_list::NameList::default(),
            promises: promises::Promises::default(),
            names: Mutex::default(),
            derivations: AtomicU64::default(),
            tier: tiered::AttachedTier::new(),
            clones_in_use: clones::ClonesInUse::default(),
            rechecked: Mutex::default(),
            disk_holds: disk_holds::DiskHolds::default(),
            crash_at,
            roots: Vec::new(),
            is_root: false,
            is_skipped: AtomicBool::new(false),
            _lock: lock,
            notes,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a seal, the next start syncs the folders that could not be synced.
        if self.pending_renames.is_settled() {
            self.index.close();
        }
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests;
