//! Ingests: blobs that are being written. This file has the only commit path.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use content::{Algorithm, Digest, Expected, Hasher, IngestId};

use crate::layout::create_rare_shelf;
use crate::sync::{Mutex, PoisonError};
use crate::{Blobs, CrashPoint, Error, Store, files};

/// Bytes that are written and then hashed at a time, small enough for the cache of a core.
const PIECE: usize = 1 << 17;

/// The ids of ingests that have a writer.
#[derive(Debug, Default)]
pub(crate) struct ActiveIngests(Mutex<HashSet<IngestId>>);

impl ActiveIngests {
    fn take(&self, id: &IngestId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone())
    }

    fn free(&self, id: &IngestId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

/// An ingest on disk: a [`Write`] that hashes the bytes it writes.
///
/// ```text
/// open ──write──▶ open ──commit──▶ blob
///   │               └─────cancel──▶ nothing
///   └──drop──▶ ingest/<id>/ stays, to be resumed
/// ```
#[derive(Debug)]
pub struct IngestFile {
    store: Store,
    id: IngestId,
    folder: PathBuf,
    file: File,
    hasher: Hasher,
    written: u64,
    expected: Expected,
}

impl Blobs<'_> {
    /// Starts or resumes an ingest. Existing bytes are hashed again, so that damage to them is
    /// found.
    ///
    /// # Errors
    /// [`content::Error::Busy`] while another writer holds `id`.
    pub fn start_ingest(&self, id: &IngestId, expected: Expected) -> Result<IngestFile, Error> {
        self.0.ensure_writable()?;
        if !self.0.0.active_ingests.take(id) {
            return Err(content::Error::Busy(id.to_string()).into());
        }
        let folder = self.0.0.layout.ingest(id);
        let is_named_by_digest = expected.digest().is_some_and(|digest| *id == IngestId::of(&digest));
        open(&folder, expected, is_named_by_digest)
            .map(|(file, hasher, written)| IngestFile {
                store: self.0.clone(),
                id: id.clone(),
                folder,
                file,
                hasher,
                written,
                expected,
            })
            .inspect_err(|_| self.0.0.active_ingests.free(id))
    }

    /// The ids of ingests that were started and neither committed nor cancelled.
    pub fn ingest_ids(&self) -> Result<Vec<IngestId>, Error> {
        let entries = files::entries(&self.0.0.layout.ingests())?;
        Ok(entries.iter().filter_map(|e| IngestId::parse(&e.file_name().to_string_lossy()).ok()).collect())
    }

    /// Whether an ingest was started and neither committed nor cancelled.
    pub fn has_ingest(&self, id: &IngestId) -> bool {
        self.0.0.layout.ingest(id).join("data").is_file()
    }

    /// Number of bytes that an ingest has so far; 0 if it does not exist.
    pub fn ingest_size(&self, id: &IngestId) -> u64 {
        fs::metadata(self.0.0.layout.ingest(id).join("data")).map_or(0, |data| data.len())
    }

    /// Removes the bytes of an ingest, unless a writer holds it.
    pub fn discard_ingest(&self, id: &IngestId) -> Result<(), Error> {
        self.0.ensure_writable()?;
        if self.0.remove_unheld(id, |_| true)? {
            return Ok(());
        }
        Err(content::Error::Busy(id.to_string()).into())
    }

    /// Removes ingests that have no writer and cannot be resumed: ingests without data, and ingests
    /// whose id begins with `prefix`.
    pub fn discard_dead_ingests(&self, prefix: &str) -> Result<(), Error> {
        self.0.ensure_writable()?;
        let mut failed = Ok(());
        for id in self.0.blobs().ingest_ids()? {
            let dead = |folder: &Path| id.as_str().starts_with(prefix) || !folder.join("data").is_file();
            // A failure does not stop the loop; a leftover ingest does no harm.
            failed = failed.and(self.0.remove_unheld(&id, dead).map(drop));
        }
        failed
    }

    /// Removes ingests that have no writer and were not written to for `idle`.
    pub fn expire_ingests(&self, idle: std::time::Duration, now: std::time::SystemTime) -> Result<usize, Error> {
        self.0.ensure_writable()?;
        let (mut removed, mut failed) = (0, Ok(()));
        for id in self.0.blobs().ingest_ids()? {
            let old = |folder: &Path| {
                let modified = fs::metadata(folder.join("data")).and_then(|m| m.modified());
                // An ingest without readable data cannot be resumed, so it is removed at once.
                modified.map_or(true, |time| now.duration_since(time).is_ok_and(|age| age >= idle))
            };
            match self.0.remove_unheld(&id, old) {
                Ok(gone) => removed += usize::from(gone),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.map(|()| removed)
    }
}

impl Store {
    /// Removes an ingest that is `due`. It is held meanwhile, so that no writer resumes it. Returns
    /// `false` if a writer holds it, or if it is not due.
    fn remove_unheld(&self, id: &IngestId, due: impl Fn(&Path) -> bool) -> Result<bool, Error> {
        if !self.0.active_ingests.take(id) {
            return Ok(false);
        }
        let folder = self.0.layout.ingest(id);
        let removed = if due(&folder) { files::remove_folder(&folder).map(|()| true) } else { Ok(false) };
        self.0.active_ingests.free(id);
        removed
    }
}

fn algorithm(expected: Expected) -> Algorithm {
    expected.digest().map_or(Algorithm::Sha256, |digest| digest.algorithm())
}

/// The content of `meta`: the digest and size that the data is for. Data for other bytes is not
/// resumed. An ingest whose id is the digest has no `meta`: it would repeat the id, and cost one
/// more file for each of the many small blobs of a pull.
fn meta(expected: Expected) -> String {
    let digest = expected.digest().map_or_else(|| "-".to_owned(), |digest| digest.to_string());
    let size = expected.size().map_or_else(|| "-".to_owned(), |size| size.to_string());
    format!("{digest} {size}\n")
}

fn open(folder: &Path, expected: Expected, is_named_by_digest: bool) -> Result<(File, Hasher, u64), Error> {
    files::create_folder(folder)?;
    let (meta_path, data_path) = (folder.join("meta"), folder.join("data"));
    let resumable = if is_named_by_digest {
        // Data that is longer than expected was started for another size.
        fs::metadata(&data_path).is_ok_and(|data| expected.size().is_none_or(|size| data.len() <= size))
    } else {
        files::read_if_there(&meta_path)?.is_some_and(|text| text == meta(expected))
    };
    if !resumable && !is_named_by_digest {
        fs::write(&meta_path, meta(expected)).map_err(|e| Error::io("write", &meta_path, e))?;
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(!resumable)
        .open(&data_path)
        .map_err(|e| Error::io("open", &data_path, e))?;
    let mut hasher = Hasher::new(algorithm(expected));
    let written = hash_all(&mut file, &mut hasher).map_err(|e| Error::io("read", &data_path, e))?;
    Ok((file, hasher, written))
}

/// Hashes a file from its beginning, and leaves it positioned at its end.
fn hash_all(file: &mut File, hasher: &mut Hasher) -> io::Result<u64> {
    if file.metadata()?.len() == 0 {
        return Ok(0);
    }
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 1 << 18];
    let mut total = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(total),
            n => {
                hasher.update(&buffer[..n]);
                total += n as u64;
            }
        }
    }
}

impl IngestFile {
    /// Number of bytes written so far.
    pub fn offset(&self) -> u64 {
        self.written
    }

    /// The digest of the bytes so far. Callers use it to find out whether the blob exists already.
    pub fn digest(&self) -> Digest {
        self.hasher.clone().finish()
    }

    /// Replaces the expected digest and size. If the hash function changes, the bytes are hashed
    /// again.
    pub fn expect(&mut self, expected: Expected) -> Result<(), Error> {
        if algorithm(expected) != algorithm(self.expected) {
            let mut hasher = Hasher::new(algorithm(expected));
            let path = self.folder.join("data");
            hash_all(&mut self.file, &mut hasher).map_err(|e| Error::io("read", &path, e))?;
            self.hasher = hasher;
        }
        self.expected = expected;
        Ok(())
    }

    /// Makes the bytes a blob: sync, check, rename, sync the folder. The blob is durable when this
    /// returns.
    ///
    /// Bytes that fail the check are removed, and so are bytes that could not be synced: the system
    /// may have dropped them, and may report success when they are synced again. A failure after
    /// the rename is an error too, although the blob is complete: it is not durable, so it must not
    /// be acknowledged.
    pub fn commit(self) -> Result<(Digest, u64), Error> {
        let data = self.folder.join("data");
        if let Err(error) = self.file.sync_all() {
            self.discard();
            return Err(Error::io("sync", &data, error));
        }
        self.store.reach(CrashPoint::Synced);
        let (digest, size) = (self.digest(), self.written);
        if let Err(error) = self.expected.check(digest, size) {
            self.discard();
            return Err(error.into());
        }
        self.store.reach(CrashPoint::Verified);
        let placed = self.store.place(&data, &digest, size);
        // After a rename, or if the blob existed, the rest of the ingest is not needed. Otherwise
        // the data stays and can be resumed.
        if placed.is_ok() || !data.is_file() {
            self.discard();
        }
        placed.map(|()| (digest, size))
    }

    /// Removes the ingest if possible. A leftover is removed later, like an abandoned ingest.
    fn discard(&self) {
        // After the rename, a folder without `meta` is empty.
        if fs::remove_dir(&self.folder).is_ok() {
            return;
        }
        if let Err(error) = files::remove_folder(&self.folder) {
            tracing::warn!("a finished ingest could not be removed: {error}");
        }
    }

    /// Cancels the ingest and removes its bytes.
    pub fn cancel(self) -> Result<(), Error> {
        files::remove_folder(&self.folder)
    }
}

impl Store {
    /// Renames verified, synced data to its digest. If the blob exists already, the data stays in
    /// place. If a file of another size exists, which is damaged, the data replaces it.
    fn place(&self, data: &Path, digest: &Digest, size: u64) -> Result<(), Error> {
        let path = self.blobs().path(digest);
        let folder = path.parent().expect("invariant: a blob's path has three folders below the store");
        self.0.collection_lock.touch(digest);
        let _placement = self.0.pending_renames.begin(digest);
        if fs::metadata(&path).is_ok_and(|there| there.is_file() && there.len() == size) {
            self.0.pending_renames.sync(folder)?;
            return self.forget_extents(digest).map(drop);
        }
        create_rare_shelf(&self.0.layout.blobs(), folder, digest.algorithm())?;
        fs::rename(data, &path).map_err(|e| Error::io("rename to its digest", &path, e))?;
        self.reach(CrashPoint::Renamed);
        // Not before the rename: data that could not be renamed is opened for writing again.
        if let Err(error) = files::make_read_only(&path) {
            tracing::warn!("a blob could not be made read-only: {error}");
        }
        self.0.pending_renames.sync(folder)?;
        self.reach(CrashPoint::DirectorySynced);
        self.forget_extents(digest).map(drop)
    }
}

impl IngestFile {
    /// Appends bytes. Only bytes that the file accepted are hashed, so that both agree if the disk
    /// is full.
    ///
    /// # Errors
    /// [`content::Error::WrongSize`] beyond the expected size; then nothing is written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let actual = self.written + bytes.len() as u64;
        if let Some(expected) = self.expected.size().filter(|expected| actual > *expected) {
            return Err(content::Error::WrongSize { expected, actual }.into());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = match self.file.write(&rest[..rest.len().min(PIECE)]) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other,
            };
            let count = written.map_err(|source| Error::io("write", &self.folder.join("data"), source))?;
            self.hasher.update(&rest[..count]);
            self.written += count as u64;
            self.store.reach(CrashPoint::Written);
            rest = &rest[count..];
        }
        Ok(())
    }
}

impl Drop for IngestFile {
    fn drop(&mut self) {
        self.store.0.active_ingests.free(&self.id);
    }
}
