//! A repository of a storage as the target of transfers: a committed blob is in the repository at
//! once.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Provider};
use registry::server::{Lookup, Repository, Storage};

/// A repository that gets blobs.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryTarget<S> {
    pub(crate) storage: S,
    pub(crate) repository: Arc<Repository>,
}

impl<S: Storage> Provider for RepositoryTarget<S> {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        self.storage.blob(&self.repository, digest, Lookup::Promise).await
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        self.storage.read(blob, range).await
    }
}

impl<S: Storage> Ingester for RepositoryTarget<S> {
    type Ingest = RepositoryIngest<S>;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<RepositoryIngest<S>, Error> {
        let mut ingest = self.storage.ingest(id, expected).await?;
        if let Some(size) = expected.size() {
            ingest.plan_for(size.saturating_sub(ingest.offset()));
        }
        Ok(RepositoryIngest { target: self.clone(), ingest, expected })
    }
}

/// A blob that is being written to a repository.
pub(crate) struct RepositoryIngest<S: Storage> {
    target: RepositoryTarget<S>,
    ingest: S::Ingest,
    expected: Expected,
}

impl<S: Storage> Ingest for RepositoryIngest<S> {
    fn offset(&self) -> u64 {
        self.ingest.offset()
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.ingest.write(bytes).await
    }

    async fn expect(&mut self, expected: Expected) -> Result<(), Error> {
        self.expected = expected;
        self.ingest.expect(expected).await
    }

    async fn pause(self) -> Result<Option<Self>, Error> {
        let Self { target, ingest, expected } = self;
        Ok(ingest.pause().await?.map(|ingest| Self { target, ingest, expected }))
    }

    async fn commit(self) -> Result<(Digest, u64), Error> {
        self.target.storage.finish(&self.target.repository, self.ingest, self.expected).await
    }

    async fn cancel(self) -> Result<(), Error> {
        self.ingest.cancel().await
    }
}
