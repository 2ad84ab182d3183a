//! A tier in a folder, most often on a larger and slower disk or on a network file system.
//!
//! # Layout
//! ```text
//! FOLDER/owner                the id of the store to which the tier belongs
//! FOLDER/blobs/sha256/ab/…    the bytes of blobs, as in a store
//! FOLDER/new/ID               blobs that are being written
//! ```
//! A blob is written to `new/`, checked, synced and renamed. [`FolderTier::open`] removes what an
//! earlier process left in `new/`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use content::tier::{BlobTier, Check, Pieces, TierOwner};
use content::{Algorithm, Descriptor, Digest};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};

use crate::layout::{create_rare_shelf, create_shelves, shelved};
use crate::roles::blocking;
use crate::{Error, files};

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// The name of an owner file that is being written.
const CLAIM: &str = "owner.new";

/// A tier in a folder.
#[derive(Debug)]
pub struct FolderTier {
    folder: PathBuf,
    /// Number of blobs that were written so far, for the names of new files.
    number: Arc<AtomicU64>,
}

impl FolderTier {
    /// Opens the tier in a folder for a store, and reserves it. The folder must exist.
    ///
    /// # Errors
    /// The folder does not exist, cannot be written, has other files, or belongs to another store.
    pub fn open(folder: &Path, store: &TierOwner) -> Result<Self, Error> {
        let owner = folder.join("owner");
        let found = files::read_if_there(&owner)?;
        if store.check(&folder.display().to_string(), found.as_deref().map(str::trim))? {
            claim(folder, &owner, &store.id)?;
            store.check(&folder.display().to_string(), files::read_if_there(&owner)?.as_deref().map(str::trim))?;
        }
        let blobs = folder.join("blobs");
        files::create_folder(&blobs.join(Algorithm::Sha256.name()))?;
        create_shelves(&blobs)?;
        files::sync_folder(folder)?;
        let new = folder.join("new");
        files::remove_folder(&new)?;
        files::create_folder(&new)?;
        Ok(Self { folder: folder.to_owned(), number: Arc::default() })
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        shelved(&self.folder.join("blobs"), digest)
    }
}

/// Reserves an empty folder, unless another store comes first.
fn claim(folder: &Path, owner: &Path, store: &str) -> Result<(), Error> {
    let entries = files::entries(folder)?;
    // A new file system has `lost+found`; a claim may have been interrupted.
    let is_other = |entry: &&fs::DirEntry| entry.file_name() != "lost+found" && entry.file_name() != CLAIM;
    if let Some(other) = entries.iter().find(is_other) {
        let (folder, other) = (folder.display(), other.file_name());
        let other = other.display();
        let reason =
            format!("the folder `{folder}` cannot be a tier: it has files, such as `{other}`; use an empty folder");
        return Err(content::Error::Other(reason.into()).into());
    }
    let claim = folder.join(CLAIM);
    files::write_synced(&claim, format!("{store}\n").as_bytes())?;
    // A link does not replace a file, unlike a rename.
    let linked = match fs::hard_link(&claim, owner) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::rename(&claim, owner).map_err(|e| Error::io("write", owner, e)),
        Ok(()) => Ok(()),
    };
    linked?;
    files::remove(&claim)?;
    files::sync_folder(folder)
}

/// A blob that is being written. Without a commit, its file is removed.
struct NewFile {
    path: PathBuf,
    file: File,
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After a commit it is not there; a leftover is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

impl NewFile {
    fn create(path: PathBuf) -> Result<Self, Error> {
        let file = File::create(&path).map_err(|e| Error::io("write", &path, e))?;
        Ok(Self { path, file })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|e| Error::io("write", &self.path, e))
    }

    fn commit(self, blobs: &Path, digest: &Digest) -> Result<(), Error> {
        self.file.sync_all().map_err(|e| Error::io("sync", &self.path, e))?;
        // Some network file systems cannot do it.
        if let Err(error) = files::make_read_only(&self.path) {
            tracing::warn!("a blob could not be made read-only: {error}");
        }
        let to = shelved(blobs, digest);
        let shelf = to.parent().expect("invariant: a blob's path has folders above it");
        create_rare_shelf(blobs, shelf, digest.algorithm())?;
        fs::rename(&self.path, &to).map_err(|e| Error::io("rename to its digest", &to, e))?;
        files::sync_folder(shelf)
    }
}

#[async_trait]
impl BlobTier for FolderTier {
    async fn put(&self, blob: &Descriptor, mut bytes: Pieces) -> Result<(), content::Error> {
        let path = self.folder.join("new").join(self.number.fetch_add(1, Ordering::Relaxed).to_string());
        let mut new = blocking(move || NewFile::create(path)).await?;
        let mut check = Check::of(blob);
        while let Some(piece) = bytes.try_next().await? {
            check.add(&piece)?;
            new = blocking(move || new.write(&piece).map(|()| new)).await?;
        }
        check.finish()?;
        let (blobs, digest) = (self.folder.join("blobs"), blob.digest);
        blocking(move || new.commit(&blobs, &digest)).await
    }

    async fn size(&self, digest: &Digest) -> Result<Option<u64>, content::Error> {
        let (path, owner) = (self.path(digest), self.folder.join("owner"));
        blocking(move || match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                is_mounted(&owner)?;
                Ok(None)
            }
            Err(e) => Err(Error::io("look at", &path, e)),
        })
        .await
    }

    async fn read(&self, blob: &Descriptor, from: u64) -> Result<Pieces, content::Error> {
        let (path, digest) = (self.path(&blob.digest), blob.digest);
        let open = {
            let path = path.clone();
            blocking(move || match File::open(&path) {
                Ok(mut file) => {
                    file.seek(SeekFrom::Start(from)).map_err(|e| Error::io("read", &path, e))?;
                    Ok(Some(file))
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(Error::io("open", &path, e)),
            })
        };
        let Some(file) = open.await? else {
            // A missing disk has its own error.
            return self.size(&digest).await.and(Err(content::Error::BlobNotFound(digest)));
        };
        let pieces = stream::try_unfold(file, move |file| {
            let path = path.clone();
            blocking(move || read_piece(file).map_err(|e| Error::io("read", &path, e)))
        });
        Ok(pieces.boxed())
    }

    async fn remove(&self, digest: &Digest) -> Result<(), content::Error> {
        let (path, owner) = (self.path(digest), self.folder.join("owner"));
        blocking(move || {
            is_mounted(&owner)?;
            files::remove(&path).map(drop)
        })
        .await
    }

    fn list(&self) -> BoxStream<'static, Result<(Digest, u64), content::Error>> {
        let (blobs, owner) = (self.folder.join("blobs"), self.folder.join("owner"));
        let shelves = {
            let owner = owner.clone();
            stream::once(blocking(move || {
                is_mounted(&owner)?;
                shelves(&blobs)
            }))
        };
        let blobs = shelves.map_ok(|shelves| {
            let shelves = stream::iter(shelves).map(Ok);
            shelves.and_then(|shelf| blocking(move || blobs_in(&shelf))).map_ok(|blobs| stream::iter(blobs).map(Ok))
        });
        // The disk may be gone before all of it is listed.
        let end = stream::once(blocking(move || is_mounted(&owner).map(|()| Vec::new())));
        let end = end.map_ok(|none| stream::iter(none).map(Ok)).try_flatten();
        blobs.try_flatten().try_flatten().chain(end).boxed()
    }
}

/// Fails if the disk of the tier is not mounted.
fn is_mounted(owner: &Path) -> Result<(), Error> {
    fs::metadata(owner).map(drop).map_err(|e| Error::io("look at", owner, e))
}

/// Reads the next piece of a file; `None` at its end.
fn read_piece(mut file: File) -> io::Result<Option<(Bytes, File)>> {
    let mut piece = Vec::with_capacity(PIECE);
    let count = (&mut file).take(PIECE as u64).read_to_end(&mut piece)?;
    Ok((count > 0).then(|| (piece.into(), file)))
}

/// The folders that have blobs, with their hash function.
fn shelves(blobs: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let mut shelves = Vec::new();
    for algorithm in files::entries_if_there(blobs)? {
        let name = algorithm.file_name().to_string_lossy().into_owned();
        shelves.extend(files::entries(&algorithm.path())?.iter().map(|shelf| (name.clone(), shelf.path())));
    }
    Ok(shelves)
}

fn blobs_in((algorithm, shelf): &(String, PathBuf)) -> Result<Vec<(Digest, u64)>, Error> {
    let mut blobs = Vec::new();
    for entry in files::entries(shelf)? {
        let Ok(digest) = format!("{algorithm}:{}", entry.file_name().to_string_lossy()).parse() else { continue };
        match entry.metadata() {
            Ok(found) => blobs.push((digest, found.len())),
            // It was removed since the folder was listed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("look at", &entry.path(), e)),
        }
    }
    Ok(blobs)
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    fn owner() -> TierOwner {
        TierOwner { id: "one".to_owned(), has_blobs: false }
    }

    #[tokio::test]
    async fn conformance() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |store: TierOwner| {
            let opened = FolderTier::open(folder.path(), &store);
            async move { opened.map(|tier| Arc::new(tier) as Arc<dyn BlobTier>).map_err(content::Error::from) }
        };
        content::testsuite::tier::run(open).await;
        assert_eq!(files::entries(&folder.path().join("new")).expect("a folder").len(), 0, "nothing is left over");
    }

    #[tokio::test]
    async fn a_disk_that_is_not_mounted_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let tier = FolderTier::open(folder.path(), &owner()).expect("a tier");
        let blob = Descriptor::blob(Digest::of(b"x"), 1);
        assert_eq!(tier.size(&blob.digest).await.expect("a size"), None);
        fs::remove_dir_all(folder.path()).expect("removed");
        let listed = tier.list().try_collect::<Vec<_>>().await.err();
        let removed = tier.remove(&blob.digest).await.err();
        for error in [tier.size(&blob.digest).await.err(), tier.read(&blob, 0).await.err(), listed, removed] {
            assert!(matches!(&error, Some(content::Error::Io { .. })), "{error:?}");
        }
        assert!(FolderTier::open(folder.path(), &owner()).is_err(), "a folder that does not exist");
    }

    #[test]
    fn a_folder_with_other_files_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("letter.txt"), "dear").expect("a file");
        let error = FolderTier::open(folder.path(), &owner()).expect_err("not empty").to_string();
        assert!(error.contains("letter.txt"), "{error}");
    }
}
