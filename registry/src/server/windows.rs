//! Streams of blobs that a storage reads in windows.

use std::ops::Range;

use bytes::Bytes;
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
/// The first window cannot be read. It is read before this returns, so that the response can have
/// the status of the error.
pub async fn windows<S: Provider + Clone + 'static>(
    storage: &S,
    blob: &Descriptor,
    range: Range<u64>,
    held: impl Send + 'static,
) -> Result<BlobStream, Error> {
    let second = range.end.min(range.start + WINDOW);
    let first = window(storage, blob, range.start..second).await?;
    let (storage, blob, end) = (storage.clone(), blob.clone(), range.end);
    let others = (second..end).step_by(WINDOW as usize).map(move |start| {
        let (storage, blob) = (storage.clone(), blob.clone());
        async move { window(&storage, &blob, start..end.min(start + WINDOW)).await }
    });
    let first = futures_util::stream::once(std::future::ready(Ok(first)));
    let sent = first.chain(futures_util::stream::iter(others).buffered(AHEAD));
    Ok(sent.inspect(move |_| _ = &held).boxed())
}

async fn window<S: Provider>(storage: &S, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
    let bytes = storage.read(blob, range.clone()).await?;
    // With too few bytes the client would wait for the rest.
    if bytes.len() as u64 != range.end - range.start {
        return Err(Error::WrongSize { expected: range.end, actual: range.start + bytes.len() as u64 });
    }
    Ok(bytes)
}
