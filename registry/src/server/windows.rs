//! Streams of blobs that a storage reads in windows.

use std::ops::Range;

use content::{Descriptor, Error, Provider};
use futures_util::StreamExt;

use super::storage::BlobStream;

/// Size of a window of a blob, in bytes.
const WINDOW: u64 = 1 << 20;
/// Number of windows that are read at a time.
const AHEAD: usize = 2;

/// Streams a range of a blob in windows. `held` is dropped with the stream.
///
/// # Errors
/// The first window cannot be read.
pub async fn windows<S: Provider + Clone + 'static>(
    storage: &S,
    blob: &Descriptor,
    range: Range<u64>,
    held: impl Send + 'static,
) -> Result<BlobStream, Error> {
    if range.end - range.start <= WINDOW {
        let bytes = storage.read(blob, range).await?;
        return Ok(futures_util::stream::once(std::future::ready(Ok(bytes))).boxed());
    }
    let (storage, blob, end) = (storage.clone(), blob.clone(), range.end);
    let windows = range.step_by(WINDOW as usize).map(move |start| {
        let (storage, blob) = (storage.clone(), blob.clone());
        async move {
            let wanted = start..end.min(start + WINDOW);
            let bytes = storage.read(&blob, wanted.clone()).await?;
            // With too few bytes the client would wait for the rest.
            let short = bytes.len() as u64 != wanted.end - wanted.start;
            if short { Err(Error::WrongSize { expected: end, actual: start + bytes.len() as u64 }) } else { Ok(bytes) }
        }
    });
    let sent = futures_util::stream::iter(windows).buffered(AHEAD);
    Ok(sent.inspect(move |_| _ = &held).boxed())
}
