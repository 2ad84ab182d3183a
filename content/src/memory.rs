//! A content store in memory, for tests. It is also the shortest implementation of the roles.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::{Algorithm, Descriptor, Digest, Error, Expected, Hasher, Ingest, IngestId, Ingester, Provider};

/// A content store in memory. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<MemoryContent>>);

#[derive(Debug, Default)]
struct MemoryContent {
    blobs: HashMap<Digest, Bytes>,
    ingests: HashMap<IngestId, Vec<u8>>,
    held: HashSet<IngestId>,
}

impl Memory {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn content(&self) -> MutexGuard<'_, MemoryContent> {
        // A poisoned lock is safe: no code can panic between two parts of one change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Provider for Memory {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        Ok(self.content().blobs.get(digest).map(|bytes| Descriptor::blob(*digest, bytes.len() as u64)))
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        let content = self.content();
        let bytes = content.blobs.get(&blob.digest).ok_or(Error::BlobNotFound(blob.digest))?;
        let end = range.end.min(bytes.len() as u64) as usize;
        let start = (range.start as usize).min(end);
        Ok(bytes.slice(start..end))
    }
}

impl Ingester for Memory {
    type Ingest = MemoryIngest;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<MemoryIngest, Error> {
        let mut content = self.content();
        if !content.held.insert(id.clone()) {
            return Err(Error::Busy(id.to_string()));
        }
        let bytes = content.ingests.remove(id).unwrap_or_default();
        Ok(MemoryIngest { store: self.clone(), id: id.clone(), expected, bytes, keep: true })
    }
}

/// An ingest into [`Memory`].
#[derive(Debug)]
pub struct MemoryIngest {
    store: Memory,
    id: IngestId,
    expected: Expected,
    bytes: Vec<u8>,
    keep: bool,
}

impl Ingest for MemoryIngest {
    fn offset(&self) -> u64 {
        self.bytes.len() as u64
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        let actual = self.offset() + bytes.len() as u64;
        if let Some(expected) = self.expected.size().filter(|expected| actual > *expected) {
            return Err(Error::WrongSize { expected, actual });
        }
        self.bytes.extend_from_slice(&bytes);
        Ok(())
    }

    async fn expect(&mut self, expected: Expected) -> Result<(), Error> {
        self.expected = expected;
        Ok(())
    }

    async fn commit(mut self) -> Result<(Digest, u64), Error> {
        self.keep = false;
        let algorithm = self.expected.digest().map_or(Algorithm::Sha256, |digest| digest.algorithm());
        let mut hasher = Hasher::new(algorithm);
        hasher.update(&self.bytes);
        let (digest, size) = (hasher.finish(), self.offset());
        self.expected.check(digest, size)?;
        let bytes = std::mem::take(&mut self.bytes);
        self.store.content().blobs.entry(digest).or_insert_with(|| bytes.into());
        Ok((digest, size))
    }

    async fn cancel(mut self) -> Result<(), Error> {
        self.keep = false;
        Ok(())
    }
}

impl Drop for MemoryIngest {
    fn drop(&mut self) {
        let mut content = self.store.content();
        content.held.remove(&self.id);
        if self.keep {
            content.ingests.insert(self.id.clone(), std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conformance() {
        crate::testsuite::run(|| async { Memory::new() }).await;
    }
}
