//! Fetches blobs: in parallel, verified while they stream, resumed at the byte where they broke
//! off.
//!
//! ```text
//! connect ──▶ stream into an ingest ──▶ commit ──▶ done
//!    ▲             │ breaks off            │ wrong bytes
//!    └── wait ◀────┘ resume at this byte   └──▶ once more, from the next source
//! ```
//!
//! A small blob is one request. A large blob is requested in parts, several at a time. Parts are
//! written in their order, so that one hash and one offset describe the progress. A part is in
//! memory until all earlier parts are written; the limit on requests bounds this memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use content::operation::{Classified, ErrorClass, RemoteClass};
use content::{Descriptor, Expected, Ingest, IngestId, Ingester, Provider};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::remote::{BlobResponse, protocol};
use super::source_ranking::{SourceEnd, SourceRanking};
use super::{Error, Host, Remote};

/// Blobs of at least this size are fetched in parts, in bytes.
const LARGE: u64 = 64 << 20;
/// The size of a part in bytes.
const PART: u64 = 4 << 20;
/// Number of parts of one blob that are fetched at a time.
const PARTS: usize = 4;
/// Small pieces are collected up to this size before they are hashed and written, in bytes.
const PIECE: usize = 512 << 10;
/// Pieces of at least this size are written directly, because collecting them would copy them, in
/// bytes.
const DIRECT: usize = 128 << 10;
/// Maximum number of consecutive attempts at a source without progress.
const ATTEMPTS: u32 = 5;
/// Interval at which another transfer of the same blob is checked.
const LOOK: Duration = Duration::from_millis(25);

/// Reasons why a blob could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No source could provide the blob. The text has the reason of each source.
    #[error("blob `{}` could not be fetched: {reasons}", blob.digest)]
    Sources {
        /// The blob.
        blob: Descriptor,
        /// The reason of each source, in the order of the attempts.
        reasons: String,
        /// True if a source sent wrong bytes.
        wrong: bool,
    },
    /// The blob could not be stored.
    #[error(transparent)]
    Store(#[from] content::Error),
}

impl Classified for FetchError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Sources { .. } => ErrorClass::Remote(RemoteClass::Refused),
            Self::Store(error) => error.class(),
        }
    }
}

/// Receives the progress of a transfer.
pub trait Counter: Send + Sync {
    /// Adds bytes that were received.
    fn add(&self, bytes: u64);
    /// Subtracts bytes that were discarded.
    fn remove(&self, bytes: u64);
}

/// Fetches blobs of a repository. Clones share the limit on concurrent requests.
#[derive(Clone, Debug)]
pub struct Fetcher {
    remote: Remote,
    requests: Arc<Semaphore>,
    ranking: Arc<SourceRanking>,
}

/// A host that is asked for a blob, and its number in the ranking.
#[derive(Clone, Copy)]
struct RankedHost<'a> {
    host: &'a Host,
    number: usize,
}

/// The end of a stream.
enum Ended {
    /// All bytes were received.
    Complete,
    /// The stream broke off; the ingest has the bytes that were received.
    Broken(Error),
}

impl Fetcher {
    /// Creates a fetcher with at most `parallel` requests at a time.
    pub fn new(remote: Remote, parallel: usize) -> Self {
        let ranking = Arc::new(SourceRanking::new(remote.sources()));
        Self { remote, requests: Arc::new(Semaphore::new(parallel.max(1))), ranking }
    }

    /// Fetches a blob, unless `target` has it. If another transfer of the blob is in progress,
    /// waits for it.
    pub async fn fetch<T>(&self, target: &T, blob: &Descriptor, counter: &dyn Counter) -> Result<(), FetchError>
    where
        T: Provider + Ingester,
    {
        let expected = Expected::Blob { digest: blob.digest, size: blob.size };
        let mut reasons: Vec<String> = Vec::new();
        let mut wrong = 0;
        let (sources, order) = (self.remote.sources(), self.ranking.order());
        // Peers are not trusted, so their bytes never decide that the blob cannot be had.
        let trusted = order.iter().filter(|number| sources[**number].knows_tags());
        // The second round is for wrong bytes, if there is no other source.
        for (position, number) in order.iter().chain(trusted).enumerate() {
            let (host, second) = (&sources[*number], position >= order.len());
            if second && wrong != 1 {
                break;
            }
            let Some(mut ingest) = claim(target, blob, expected, counter).await? else { return Ok(()) };
            counter.add(ingest.offset());
            let before = ingest.offset();
            self.ranking.begin(*number);
            let ended = self.stream(RankedHost { host, number: *number }, blob, &mut ingest, counter).await;
            let received = ingest.offset() - before;
            let rank = |end| self.ranking.end(*number, end);
            match ended.inspect_err(|_| rank(SourceEnd::Failed))? {
                Ended::Broken(error) => {
                    rank(if matches!(error, Error::NotFound { .. }) { SourceEnd::Missing } else { SourceEnd::Failed });
                    counter.remove(ingest.offset());
                    reasons.push(error.to_string());
                    // The next source must not continue bytes that may be wrong.
                    if received > 0 && !host.knows_tags() {
                        ingest.cancel().await?;
                    }
                }
                Ended::Complete => match ingest.commit().await {
                    Ok(_) => {
                        rank(SourceEnd::Complete);
                        return Ok(());
                    }
                    Err(error @ (content::Error::WrongDigest { .. } | content::Error::WrongSize { .. })) => {
                        rank(SourceEnd::Failed);
                        counter.remove(blob.size);
                        wrong += usize::from(host.knows_tags());
                        reasons.push(format!("`{}` sent wrong bytes: {error}", host.name()));
                        if wrong == 2 {
                            break;
                        }
                    }
                    Err(error) => return Err(error.into()),
                },
            }
        }
        reasons.dedup();
        Err(FetchError::Sources { blob: blob.clone(), reasons: reasons.join("; "), wrong: wrong > 0 })
    }

    /// Fetches the missing bytes from one source, and resumes after interruptions.
    async fn stream<I: Ingest>(
        &self,
        source: RankedHost<'_>,
        blob: &Descriptor,
        ingest: &mut I,
        counter: &dyn Counter,
    ) -> Result<Ended, FetchError> {
        let (host, mut idle) = (source.host, 0);
        loop {
            let before = ingest.offset();
            let left = blob.size - before;
            let ended = if left == 0 {
                return Ok(Ended::Complete);
            } else if left >= LARGE {
                self.in_parts(source, blob, ingest, counter).await?
            } else {
                self.in_one(source, blob, ingest, counter).await?
            };
            let Ended::Broken(error) = ended else { return Ok(Ended::Complete) };
            // Any progress resets the counter: even a connection that breaks every minute
            // completes.
            idle = if ingest.offset() > before { 0 } else { idle + 1 };
            // Another source has what a peer may have.
            let most = if host.knows_tags() { ATTEMPTS } else { 1 };
            if !error.is_transient() || idle >= most {
                return Ok(Ended::Broken(error));
            }
            tracing::debug!(host = host.name(), digest = %blob.digest, offset = ingest.offset(), "going on: {error}");
            let jitter: f64 = rand::random();
            tokio::time::sleep(Duration::from_millis(100).mul_f64(f64::from(1 << idle) * (0.5 + jitter))).await;
        }
    }

    async fn in_one<I: Ingest>(
        &self,
        source: RankedHost<'_>,
        blob: &Descriptor,
        ingest: &mut I,
        counter: &dyn Counter,
    ) -> Result<Ended, FetchError> {
        let _permit = self.permit().await;
        let (before, began) = (ingest.offset(), Instant::now());
        let ended = match self.remote.blob(source.host, blob, before..blob.size).await {
            Ok(answer) => receive(source.host, blob, answer, ingest, counter).await,
            Err(error) => Ok(Ended::Broken(error)),
        };
        self.ranking.measure(source.number, ingest.offset() - before, began.elapsed());
        ended
    }

    async fn in_parts<I: Ingest>(
        &self,
        source: RankedHost<'_>,
        blob: &Descriptor,
        ingest: &mut I,
        counter: &dyn Counter,
    ) -> Result<Ended, FetchError> {
        let host = source.host;
        // The first part also shows whether the source supports ranges.
        let begin = ingest.offset();
        let permit = self.permit().await;
        let first = begin..blob.size.min(begin + PART);
        let answer = match self.remote.blob(host, blob, first.clone()).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Ended::Broken(error)),
        };
        if answer.start != begin || answer.response.status() == reqwest::StatusCode::OK {
            return receive(host, blob, answer, ingest, counter).await;
        }
        let part = Descriptor { size: first.end, ..blob.clone() };
        if let Ended::Broken(error) = receive(host, &part, answer, ingest, counter).await? {
            return Ok(Ended::Broken(error));
        }
        drop(permit);
        let starts = (first.end..blob.size).step_by(PART as usize);
        let parts = starts.map(|start| self.part(source, blob, start..blob.size.min(start + PART)));
        let mut parts = std::pin::pin!(futures_util::stream::iter(parts).buffered(PARTS));
        while let Some(part) = parts.next().await {
            match part {
                Ok((bytes, _permit)) => write(ingest, bytes, counter).await?,
                Err(error) => return Ok(Ended::Broken(error)),
            }
        }
        Ok(Ended::Complete)
    }

    /// A part, and the permit that it holds until it is written. So permits bound the memory of
    /// waiting parts.
    async fn part(
        &self,
        source: RankedHost<'_>,
        blob: &Descriptor,
        range: std::ops::Range<u64>,
    ) -> Result<(Bytes, OwnedSemaphorePermit), Error> {
        let permit = self.permit().await;
        let began = Instant::now();
        let bytes = self.remote.read_from(source.host, blob, range).await?;
        self.ranking.measure(source.number, bytes.len() as u64, began.elapsed());
        Ok((bytes, permit))
    }

    async fn permit(&self) -> OwnedSemaphorePermit {
        self.requests.clone().acquire_owned().await.expect("invariant: the semaphore is never closed")
    }
}

/// Returns the ingest of a blob, or `None` if the blob exists, perhaps because another transfer has
/// just completed.
async fn claim<T>(
    target: &T,
    blob: &Descriptor,
    expected: Expected,
    counter: &dyn Counter,
) -> Result<Option<T::Ingest>, content::Error>
where
    T: Provider + Ingester,
{
    let mut has_waited = false;
    loop {
        if has(target, blob).await? {
            counter.add(blob.size);
            return Ok(None);
        }
        match target.ingest(&IngestId::of(&blob.digest), expected).await {
            Ok(ingest) => {
                let is_new = ingest.offset() == 0;
                // It may have been committed between the two calls.
                if !(is_new && has(target, blob).await?) {
                    return Ok(Some(ingest));
                }
                ingest.cancel().await?;
            }
            Err(content::Error::Busy(_)) => {
                if !has_waited {
                    has_waited = true;
                    metrics::counter!("lode_fetch_waits_total").increment(1);
                }
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether the target has the blob, in the right size.
async fn has(target: &impl Provider, blob: &Descriptor) -> Result<bool, content::Error> {
    Ok(target.stat(&blob.digest).await?.is_some_and(|found| found.size == blob.size))
}

/// Writes the bytes of a response to the ingest, from its offset to the end of the blob.
async fn receive<I: Ingest>(
    host: &Host,
    blob: &Descriptor,
    answer: BlobResponse,
    ingest: &mut I,
    counter: &dyn Counter,
) -> Result<Ended, FetchError> {
    let BlobResponse { mut response, start } = answer;
    // A source that ignores ranges also sends bytes that were received already.
    let mut skip = ingest.offset() - start;
    let mut pending = BytesMut::new();
    let broken = loop {
        match host.next_piece(&mut response).await {
            Ok(Some(mut piece)) => {
                let known = skip.min(piece.len() as u64);
                skip -= known;
                let rest = piece.split_off(known as usize);
                let left = blob.size - ingest.offset() - pending.len() as u64;
                if rest.len() as u64 > left {
                    let reason = format!("it sends more than the {} bytes of blob `{}`", blob.size, blob.digest);
                    return Ok(Ended::Broken(protocol(host, reason)));
                }
                if pending.is_empty() && rest.len() >= DIRECT {
                    write(ingest, rest, counter).await?;
                    continue;
                }
                pending.extend_from_slice(&rest);
                if pending.len() >= PIECE {
                    write(ingest, pending.split().freeze(), counter).await?;
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    // Bytes from before an interruption are written too, so that they need not be sent again.
    if !pending.is_empty() {
        write(ingest, pending.freeze(), counter).await?;
    }
    match broken {
        Some(error) => Ok(Ended::Broken(error)),
        None if ingest.offset() == blob.size => Ok(Ended::Complete),
        None => {
            let reason = format!("it sent {} of the {} bytes of blob `{}`", ingest.offset(), blob.size, blob.digest);
            Ok(Ended::Broken(protocol(host, reason)))
        }
    }
}

async fn write<I: Ingest>(ingest: &mut I, bytes: Bytes, counter: &dyn Counter) -> Result<(), content::Error> {
    let count = bytes.len() as u64;
    ingest.write(bytes).await?;
    counter.add(count);
    Ok(())
}
