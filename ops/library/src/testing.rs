//! Helpers for the tests of this crate.

use content::{Digest, Expected, IngestId};
use store::Store;

/// Puts a blob into a store and returns its digest.
pub(crate) fn put(store: &Store, bytes: &[u8]) -> Digest {
    let id = IngestId::parse("test").expect("an id");
    let mut ingest = store.blobs().start_ingest(&id, Expected::Unknown).expect("start");
    ingest.append(bytes).expect("write");
    ingest.commit().expect("commit").0
}
