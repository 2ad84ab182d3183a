//! Uploads in progress.
//!
//! An upload is an ingest of the store, so it survives a restart. While its client is busy the open ingest is kept
//! here: opening it again would read all of it to hash it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use content::{Digest, Expected, Ingest, IngestId};
use rand::Rng;
use tokio::sync::OwnedMutexGuard;

use super::storage::{BlobStorage, Repository};

/// How long an ingest is kept open that nobody writes to.
const IDLE: Duration = Duration::from_mins(5);

/// How the ids of uploads begin.
pub const UPLOAD_PREFIX: &str = "upload-";

/// One upload: the open ingest, unless an operation on it was cut off; then it is opened again.
pub(super) type Slot<I> = Arc<tokio::sync::Mutex<Option<I>>>;

/// The open ingests by upload.
#[derive(Debug)]
pub(super) struct Sessions<I> {
    open: Mutex<HashMap<IngestId, (Slot<I>, Instant)>>,
}

impl<I: Ingest + 'static> Sessions<I> {
    pub(super) fn new() -> Self {
        Self { open: Mutex::default() }
    }

    /// Begins an upload into `repository`. The id is bound to it, and cannot be guessed.
    pub(super) async fn begin<S>(&self, storage: &S, repository: &Repository) -> Result<IngestId, content::Error>
    where
        S: BlobStorage<Ingest = I>,
    {
        let random: u128 = rand::rng().random();
        let id = IngestId::parse(&format!("{UPLOAD_PREFIX}{}-{random:032x}", mark(repository)))?;
        let ingest = storage.ingest(&id, Expected::Unknown).await?;
        self.put(&id, Arc::new(tokio::sync::Mutex::new(Some(ingest))));
        Ok(id)
    }

    /// The upload, held for one request. `None` where it was not begun in this repository.
    pub(super) async fn hold<S>(
        &self,
        storage: &S,
        repository: &Repository,
        id: &str,
    ) -> Result<Option<(IngestId, Held<I>)>, content::Error>
    where
        S: BlobStorage<Ingest = I>,
    {
        let Ok(id) = IngestId::parse(id) else { return Ok(None) };
        if !id.as_str().starts_with(&format!("{UPLOAD_PREFIX}{}-", mark(repository))) {
            return Ok(None);
        }
        let slot = self.slot(&id);
        let mut held = slot.lock_owned().await;
        if held.is_none() {
            *held = storage.resume(&id).await?;
        }
        if held.is_none() {
            self.forget(&id);
            return Ok(None);
        }
        Ok(Some((id, Held(held))))
    }

    /// Forgets an upload that was committed or cancelled.
    pub(super) fn forget(&self, id: &IngestId) {
        self.lock().remove(id);
    }

    fn slot(&self, id: &IngestId) -> Slot<I> {
        let mut open = self.lock();
        let entry = open.entry(id.clone()).or_insert_with(|| (Slot::default(), Instant::now()));
        entry.1 = Instant::now();
        entry.0.clone()
    }

    fn put(&self, id: &IngestId, slot: Slot<I>) {
        let mut open = self.lock();
        // Their files stay; a client that comes back is resumed from there.
        open.retain(|_, (slot, used)| used.elapsed() < IDLE || Arc::strong_count(slot) > 1);
        open.insert(id.clone(), (slot, Instant::now()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IngestId, (Slot<I>, Instant)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An upload while a request works on it.
#[derive(Debug)]
pub(super) struct Held<I>(OwnedMutexGuard<Option<I>>);

impl<I: Ingest> Held<I> {
    /// How many bytes are there.
    pub(super) fn offset(&self) -> u64 {
        self.0.as_ref().map_or(0, Ingest::offset)
    }

    pub(super) async fn write(&mut self, bytes: bytes::Bytes) -> Result<(), content::Error> {
        let gone = || content::Error::Other("the upload was cut off; ask for its status and go on from there".into());
        let written = self.0.as_mut().ok_or_else(gone)?.write(bytes).await;
        if written.is_err() {
            // It is opened again by the next request, from what is on disk.
            *self.0 = None;
        }
        written
    }

    /// The ingest itself, for its end.
    pub(super) fn take(&mut self) -> Option<I> {
        self.0.take()
    }
}

/// A short name of a repository.
fn mark(repository: &Repository) -> String {
    Digest::of(repository.to_string().as_bytes()).short()
}
