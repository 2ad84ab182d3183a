//! `/api/blobs`: uploads of files for creating models.

use std::time::{Duration, SystemTime};

use api::lode::UploadResponse;
use axum::Json;
use axum::body::{Body, BodyDataStream, HttpBody};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use content::{Digest, Expected, Ingest, IngestId, Ingester, Provider};
use futures_util::StreamExt;
use library::Library;
use rand::Rng;

use crate::daemon::Daemon;
use crate::error::Failed;

/// How long an upload is kept for the create that uses it.
const LEASE: Duration = Duration::from_hours(1);

/// How long an upload is kept after a create, since another create may use it, for example with
/// another quantization.
pub(crate) const AFTERWARDS: Duration = Duration::from_mins(5);

/// How long the rest of a failed upload is read.
const LINGER: Duration = Duration::from_secs(30);

fn parse(text: &str) -> Result<Digest, Failed> {
    // Some clients write `sha256-…`.
    let text = text.replacen("sha256-", "sha256:", 1);
    text.parse().map_err(|_| Failed::bad_request("invalid digest format"))
}

pub(crate) async fn exists(State(daemon): State<Daemon>, Path(digest): Path<String>) -> Result<StatusCode, Failed> {
    let parsed = parse(&digest)?;
    let library = &daemon.library;
    if library.stat(&parsed).await.map_err(failed)?.is_some() {
        // A promise in memory, because a query must not write to the disk. The second check is
        // necessary because a collection may be running.
        library.leases().promise("uploads", &parsed, SystemTime::now() + LEASE);
        if library.stat(&parsed).await.map_err(failed)?.is_some() {
            return Ok(StatusCode::OK);
        }
    }
    Err(Failed::new(StatusCode::NOT_FOUND, format!("blob \"{digest}\" not found")))
}

/// Receives a blob and hashes the bytes as they arrive. The bytes of an interrupted upload are
/// removed, since this protocol cannot resume uploads.
pub(crate) async fn upload(
    State(daemon): State<Daemon>,
    Path(digest): Path<String>,
    body: Body,
) -> Result<StatusCode, Failed> {
    let digest = parse(&digest)?;
    if renew(&daemon, digest).await? {
        // Reads the body to its end, because the client would see a broken connection instead of
        // the response.
        let mut rest = body.into_data_stream();
        while let Some(Ok(_)) = rest.next().await {}
        return Ok(StatusCode::OK);
    }
    let expected = match body.size_hint().exact() {
        Some(size) => Expected::Blob { digest, size },
        None => Expected::Digest(digest),
    };
    take(&daemon, expected, body).await?;
    Ok(StatusCode::CREATED)
}

/// Receives a blob whose digest the client does not know, for example because a web page cannot
/// hash large files.
pub(crate) async fn upload_unnamed(State(daemon): State<Daemon>, body: Body) -> Result<Json<UploadResponse>, Failed> {
    let expected = body.size_hint().exact().map_or(Expected::Unknown, Expected::Size);
    let (digest, size) = take(&daemon, expected, body).await?;
    Ok(Json(UploadResponse { digest: digest.to_string(), size }))
}

/// Writes and leases the bytes that a client sends. After a failure it reads on for a while,
/// because the client reads the response only after sending and would see a broken connection
/// instead.
async fn take(daemon: &Daemon, expected: Expected, body: Body) -> Result<(Digest, u64), Failed> {
    let mut stream = body.into_data_stream();
    let taken = write(daemon, expected, &mut stream).await;
    if taken.is_err() {
        let rest = async { while let Some(Ok(_)) = stream.next().await {} };
        let _too_long = tokio::time::timeout(LINGER, rest).await;
    }
    taken
}

async fn write(daemon: &Daemon, expected: Expected, stream: &mut BodyDataStream) -> Result<(Digest, u64), Failed> {
    let library = &daemon.library;
    // A random id, because several clients may upload the same bytes at once. The first upload to
    // finish creates the blob.
    let id = IngestId::parse(&format!("blob-{:032x}", rand::rng().random::<u128>())).map_err(failed)?;
    let mut unfinished = Unfinished { library: library.clone(), id: Some(id.clone()) };
    let mut ingest = library.ingest(&id, expected).await.map_err(failed)?;
    while let Some(piece) = stream.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => return Err(Failed::bad_request(format!("the upload broke off: {error}"))),
        };
        ingest.write(piece).await.map_err(failed)?;
    }
    // Not earlier: while a slow client sends, the guard would protect additions of other clients
    // from collection.
    let _guard = guard(daemon).await?;
    let (digest, size) = ingest.commit().await.map_err(failed)?;
    unfinished.id = None;
    lease(daemon, digest).await?;
    Ok((digest, size))
}

/// An upload that is removed if it does not complete, because the client disconnects or sends wrong
/// bytes.
struct Unfinished {
    library: Library,
    /// `None` once it is a blob.
    id: Option<IngestId>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let library = self.library.clone();
        // The task is short: it removes one folder. If it fails, the next sweep removes the folder.
        drop(tokio::task::spawn_blocking(move || {
            if let Err(error) = library.blobs().discard_ingest(&id) {
                tracing::debug!("an upload that broke off stays for now: {error}");
            }
        }));
    }
}

/// Keeps blobs that are committed from now on from collection.
async fn guard(daemon: &Daemon) -> Result<store::Guard, Failed> {
    crate::models::blocking(&daemon.library, |library| Ok(library.guard())).await
}

/// Leases a blob if it exists; returns whether it does.
async fn renew(daemon: &Daemon, digest: Digest) -> Result<bool, Failed> {
    let guard = guard(daemon).await?;
    // The guard lives until the lease is set.
    let kept = crate::models::blocking(&daemon.library, move |_| Ok(guard.keep(&digest)?.map(|_| guard))).await?;
    if kept.is_some() {
        lease(daemon, digest).await?;
    }
    Ok(kept.is_some())
}

async fn lease(daemon: &Daemon, digest: Digest) -> Result<(), Failed> {
    crate::models::blocking(&daemon.library, move |library| {
        let (id, until) = (IngestId::of(&digest), SystemTime::now() + LEASE);
        if !library.leases().get(&id)?.is_empty() {
            // Two clients have uploaded the blob. The promise keeps it for the second one when the
            // first one's create shortens the lease.
            library.leases().promise("uploads", &digest, until);
        }
        Ok(library.leases().set(&id, &[digest], until)?)
    })
    .await
}

/// Shortens the leases of uploads from which a model was made, because its tensors have their own
/// blobs. Blobs without a lease, or with other references, are unaffected.
pub(crate) fn used(library: &Library, digests: &[Digest]) {
    for digest in digests {
        let id = IngestId::of(digest);
        let shorten = |leased: Vec<Digest>| {
            if leased.is_empty() { Ok(()) } else { library.leases().set(&id, &leased, SystemTime::now() + AFTERWARDS) }
        };
        let done = library.leases().get(&id).and_then(shorten);
        if let Err(error) = done {
            tracing::debug!("an upload is kept for an hour: {error}");
        }
    }
}

fn failed(error: content::Error) -> Failed {
    match error {
        content::Error::WrongDigest { expected, actual } => {
            Failed::bad_request(format!("digest mismatch, expected \"{expected}\", got \"{actual}\""))
        }
        content::Error::WrongSize { .. } => Failed::bad_request(error.to_string()),
        other => other.into(),
    }
}
