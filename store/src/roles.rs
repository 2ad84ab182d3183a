//! The roles of [`content`], implemented on threads for blocking work.

use std::ops::Range;

use bytes::Bytes;
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Provider};

use crate::{IngestFile, Store};

/// Runs work that blocks on the disk. Panics are passed on to the caller.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, crate::Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(Error::from),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(cancelled) => Err(Error::Other(Box::new(cancelled))),
    }
}

impl Provider for Store {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        let (store, digest) = (self.clone(), *digest);
        let size = blocking(move || store.blobs().size(&digest)).await?;
        Ok(size.map(|size| Descriptor::blob(digest, size)))
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        let (store, digest) = (self.clone(), blob.digest);
        blocking(move || store.blobs().open(&digest)?.read(range).map(Bytes::from)).await
    }
}

impl Ingester for Store {
    type Ingest = StoreIngest;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<StoreIngest, Error> {
        let (store, id) = (self.clone(), id.clone());
        let file = blocking(move || store.blobs().start_ingest(&id, expected)).await?;
        Ok(StoreIngest { offset: file.offset(), file: Some(file) })
    }
}

/// An ingest into a [`Store`], for async callers.
#[derive(Debug)]
pub struct StoreIngest {
    /// `None` while a write is in progress; also after a write that panicked or was cancelled.
    file: Option<IngestFile>,
    offset: u64,
}

impl StoreIngest {
    fn take(&mut self) -> Result<IngestFile, Error> {
        self.file
            .take()
            .ok_or_else(|| Error::Other("an earlier write to this ingest was cancelled; start it again".into()))
    }
}

impl Ingest for StoreIngest {
    fn offset(&self) -> u64 {
        self.offset
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        let mut file = self.take()?;
        let (file, result) = blocking(move || {
            let result = file.append(&bytes);
            Ok((file, result))
        })
        .await?;
        self.offset = file.offset();
        self.file = Some(file);
        result.map_err(Error::from)
    }

    async fn expect(&mut self, expected: Expected) -> Result<(), Error> {
        let mut file = self.take()?;
        let (file, result) = blocking(move || {
            let result = file.expect(expected);
            Ok((file, result))
        })
        .await?;
        self.file = Some(file);
        result.map_err(Error::from)
    }

    async fn commit(mut self) -> Result<(Digest, u64), Error> {
        let file = self.take()?;
        blocking(move || file.commit()).await
    }

    async fn cancel(mut self) -> Result<(), Error> {
        let file = self.take()?;
        blocking(move || file.cancel()).await
    }
}
