//! Storing of manifests that were fetched from a registry.

use std::time::Duration;

use content::{Digest, Expected, IngestId};
use library::Library;
use store::Guard;

/// How long to wait for another writer of the same manifest, and the interval of retries.
const PATIENCE: Duration = Duration::from_secs(10);
const BUSY: Duration = Duration::from_millis(5);

/// Stores a fetched manifest, unless it is in the store already. The guard keeps it.
pub(crate) fn store_document(
    library: &Library,
    guard: &Guard,
    digest: &Digest,
    raw: &[u8],
) -> Result<(), store::Error> {
    store_within(library, guard, (digest, raw), PATIENCE)
}

fn store_within(
    library: &Library,
    guard: &Guard,
    (digest, raw): (&Digest, &[u8]),
    patience: Duration,
) -> Result<(), store::Error> {
    if guard.keep(digest)? == Some(raw.len() as u64) {
        return Ok(());
    }
    let expected = Expected::Blob { digest: *digest, size: raw.len() as u64 };
    let mut ingest = match library.blobs().start_ingest(&IngestId::of(digest), expected) {
        Ok(ingest) => ingest,
        // Another writer stores the same few bytes.
        Err(store::Error::Content(content::Error::Busy(_))) if patience > Duration::ZERO => {
            std::thread::sleep(BUSY);
            return store_within(library, guard, (digest, raw), patience.saturating_sub(BUSY));
        }
        Err(error) => return Err(error),
    };
    let begun = usize::try_from(ingest.offset()).unwrap_or(usize::MAX).min(raw.len());
    ingest.append(&raw[begun..])?;
    ingest.commit().map(drop)
}
