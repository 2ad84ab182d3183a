//! Copies a blob from one store to another. Pull, push and mount use this.

use crate::{Digest, Error, Expected, Ingest, IngestId, Ingester, Provider};

/// Bytes that are in memory at a time.
const CHUNK: u64 = 1 << 20;

/// Copies the blob `digest` from `source` to `target`; returns its size in bytes.
///
/// The copy resumes from the bytes that an earlier attempt left in the target. The target verifies
/// the bytes when it commits them. Wrong bytes from the source fail with [`Error::WrongDigest`] and
/// leave no blob in the target.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use lode_content::{Expected, Ingest, IngestId, Ingester, Memory, Provider, copy};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (source, target) = (Memory::new(), Memory::new());
/// let mut ingest = source.ingest(&IngestId::parse("a")?, Expected::Unknown).await?;
/// ingest.write(Bytes::from_static(b"hello")).await?;
/// let (digest, _) = ingest.commit().await?;
///
/// assert_eq!(copy(&source, &target, &digest).await?, 5);
/// assert_eq!(target.read(&digest, 1..3).await?, "el");
/// # Ok::<(), lode_content::Error>(())
/// # }).unwrap();
/// ```
pub async fn copy<P, I>(source: &P, target: &I, digest: &Digest) -> Result<u64, Error>
where
    P: Provider,
    I: Ingester,
{
    let size = source.size(digest).await?.ok_or(Error::BlobNotFound(*digest))?;
    let expected = Expected::Blob { digest: *digest, size };
    let mut ingest = target.ingest(&IngestId::of(digest), expected).await?;
    while ingest.offset() < size {
        let offset = ingest.offset();
        let bytes = source.read(digest, offset..size.min(offset + CHUNK)).await?;
        if bytes.is_empty() {
            return Err(Error::WrongSize { expected: size, actual: offset });
        }
        ingest.write(bytes).await?;
    }
    ingest.commit().await?;
    Ok(size)
}
