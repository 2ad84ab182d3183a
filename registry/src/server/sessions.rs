//! Uploads in progress.
//!
//! An upload is an ingest of the store, so it survives a restart. While its client is active, the
//! open ingest is cached here, if its storage belongs to this process: opening it again would read
//! and hash all of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use content::{Digest, Expected, Ingest, IngestId};
use rand::Rng;
use tokio::sync::OwnedMutexGuard;

use super::quota::{Quota, UploadScope};
use super::refusal::ErrorReply;
use super::storage::{BlobStorage, Repository};
use super::sync::{Mutex, MutexGuard, PoisonError, finished, spawn, timeout};

/// How long an idle ingest stays open. With the feature `schedules`, every unused ingest counts as
/// idle.
const IDLE: Duration = if cfg!(feature = "schedules") { Duration::ZERO } else { Duration::from_mins(5) };

/// Maximum number of open ingests. Each has an open file.
const MOST: usize = 256;
/// How long a request waits for another one on the same upload. It is a little longer than the
/// timeout of a silent client.
const PATIENCE: Duration = Duration::from_secs(75);

/// Prefix of the ids of uploads.
pub const UPLOAD_PREFIX: &str = "upload-";

/// One upload: the open ingest. `None` after an interrupted operation; it is then opened again.
pub(super) type OpenUpload<I> = Arc<tokio::sync::Mutex<Option<I>>>;

/// The open ingests, by upload.
#[derive(Debug)]
pub(super) struct Sessions<I> {
    open: Mutex<HashMap<IngestId, (OpenUpload<I>, Instant)>>,
    pub(super) quota: Quota,
}

impl<I: Ingest + 'static> Sessions<I> {
    pub(super) fn new(scope: UploadScope) -> Self {
        Self { open: Mutex::default(), quota: Quota::new(scope) }
    }

    /// Begins an upload into `repository` for the client `peer`. The id is bound to the repository
    /// and cannot be guessed. The future must not be dropped before it completes.
    pub(super) async fn begin<S>(
        &self,
        storage: &S,
        repository: &Repository,
        peer: Option<IpAddr>,
    ) -> Result<IngestId, ErrorReply>
    where
        S: BlobStorage<Ingest = I>,
    {
        let random: u128 = rand::rng().random();
        let id = IngestId::parse(&format!("{UPLOAD_PREFIX}{}-{random:032x}", mark(repository)))?;
        self.quota.begin(&id, peer)?;
        let ingest = storage.ingest(&id, Expected::Unknown).await.inspect_err(|_| self.quota.end(&id))?;
        self.put(&id, Arc::new(tokio::sync::Mutex::new(Some(ingest))));
        Ok(id)
    }

    /// Locks the upload for one request. `None` if it was not begun in this repository.
    pub(super) async fn hold<S>(
        &self,
        storage: &S,
        repository: &Repository,
        id: &str,
    ) -> Result<Option<(IngestId, LockedUpload<I>)>, content::Error>
    where
        S: BlobStorage<Ingest = I> + Clone + 'static,
    {
        let Ok(id) = IngestId::parse(id) else { return Ok(None) };
        if !id.as_str().starts_with(&format!("{UPLOAD_PREFIX}{}-", mark(repository))) {
            return Ok(None);
        }
        let busy = |_| content::Error::Busy(id.to_string());
        let mut held = timeout(PATIENCE, self.lock_slot(&id)).await.map_err(busy)?;
        if held.is_none() {
            held = resumed(storage.clone(), id.clone(), held).await?;
        }
        if held.is_none() {
            self.forget(&id);
            return Ok(None);
        }
        Ok(Some((id, LockedUpload(held))))
    }

    /// Waits for the lock of an upload. If the upload was forgotten meanwhile, its slot is looked
    /// up again, so that an upload never has two slots in use.
    async fn lock_slot(&self, id: &IngestId) -> OwnedMutexGuard<Option<I>> {
        loop {
            let held = self.slot(id).lock_owned().await;
            let open = self.lock();
            if open.get(id).is_some_and(|(slot, _)| Arc::ptr_eq(slot, OwnedMutexGuard::mutex(&held))) {
                return held;
            }
        }
    }

    /// Forgets an upload that was committed or cancelled.
    pub(super) fn forget(&self, id: &IngestId) {
        self.lock().remove(id);
        self.quota.end(id);
    }

    /// Closes idle ingests, so that they can be removed.
    pub(super) fn close_idle(&self) {
        close_idle(&mut self.lock());
    }

    /// Whether no upload is open or counted.
    #[cfg(all(test, feature = "schedules"))]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty() && self.quota.is_empty()
    }

    fn slot(&self, id: &IngestId) -> OpenUpload<I> {
        let mut open = self.lock();
        close_idle(&mut open);
        let entry = open.entry(id.clone()).or_insert_with(|| (OpenUpload::default(), Instant::now()));
        entry.1 = Instant::now();
        entry.0.clone()
    }

    fn put(&self, id: &IngestId, slot: OpenUpload<I>) {
        let mut open = self.lock();
        close_idle(&mut open);
        open.insert(id.clone(), (slot, Instant::now()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IngestId, (OpenUpload<I>, Instant)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens an upload again, in its own task. If the client disconnected during the opening, the
/// ingest would otherwise stay busy, and the next request, perhaps of the same client, would fail.
async fn resumed<S: BlobStorage<Ingest: 'static> + 'static>(
    storage: S,
    id: IngestId,
    mut held: OwnedMutexGuard<Option<S::Ingest>>,
) -> Result<OwnedMutexGuard<Option<S::Ingest>>, content::Error> {
    let work = spawn(async move {
        *held = storage.resume(&id).await?;
        Ok(held)
    });
    finished(work).await?
}

/// Closes ingests that were idle for too long, and the longest idle ones if there are too many.
/// Their files stay, so that a client can resume.
fn close_idle<I>(open: &mut HashMap<IngestId, (OpenUpload<I>, Instant)>) {
    let at_rest = |slot: &OpenUpload<I>| Arc::strong_count(slot) == 1;
    open.retain(|_, (slot, used)| used.elapsed() < IDLE || !at_rest(slot));
    while open.len() >= MOST {
        let idle = open.iter().filter(|(_, (slot, _))| at_rest(slot));
        let Some(oldest) = idle.min_by_key(|(_, (_, used))| *used).map(|(id, _)| id.clone()) else { return };
        open.remove(&oldest);
    }
}

/// An upload that a request has locked.
#[derive(Debug)]
pub(super) struct LockedUpload<I>(OwnedMutexGuard<Option<I>>);

impl<I: Ingest> LockedUpload<I> {
    /// Number of bytes received so far.
    pub(super) fn offset(&self) -> u64 {
        self.0.as_ref().map_or(0, Ingest::offset)
    }

    /// Announces the bytes of a request.
    pub(super) fn plan_for(&mut self, bytes: u64) {
        if let Some(ingest) = self.0.as_mut() {
            ingest.plan_for(bytes);
        }
    }

    pub(super) async fn write(&mut self, bytes: bytes::Bytes) -> Result<(), content::Error> {
        let gone = || content::Error::Other("the upload was cut off; ask for its status and go on from there".into());
        let written = self.0.as_mut().ok_or_else(gone)?.write(bytes).await;
        if let Err(error) = &written {
            // The next request opens the ingest again, from its state on disk.
            let ingest = self.0.take();
            // Clients give up after this error, and the received bytes would keep the disk full.
            if error.is_full()
                && let Some(ingest) = ingest
                && let Err(error) = ingest.cancel().await
            {
                tracing::warn!("an upload for which the disk has no room stays for now: {error}");
            }
        }
        written
    }

    /// Ends the work of this request. The ingest stays open only if no other process can continue
    /// the upload.
    pub(super) async fn pause(&mut self) -> Result<(), content::Error> {
        if let Some(ingest) = self.0.take() {
            *self.0 = ingest.pause().await?;
        }
        Ok(())
    }

    /// Takes the ingest itself, to commit or cancel it.
    pub(super) fn take(&mut self) -> Option<I> {
        self.0.take()
    }
}

/// A short identifier of a repository.
fn mark(repository: &Repository) -> String {
    Digest::of(repository.to_string().as_bytes()).short()
}
