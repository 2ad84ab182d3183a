//! `/api/blobs`: files that a client sends before it creates a model from them.

use std::time::{Duration, SystemTime};

use axum::body::{Body, HttpBody};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use content::{Digest, Expected, Ingest, IngestId, Ingester, Provider};
use futures_util::StreamExt;

use crate::daemon::Daemon;
use crate::error::Failed;

/// How long an upload is kept for the create that uses it.
const LEASE: Duration = Duration::from_hours(1);

fn parse(text: &str) -> Result<Digest, Failed> {
    // Some clients write `sha256-…`.
    let text = text.replacen("sha256-", "sha256:", 1);
    text.parse().map_err(|_| Failed::bad_request("invalid digest format"))
}

pub(crate) async fn exists(State(daemon): State<Daemon>, Path(digest): Path<String>) -> Result<StatusCode, Failed> {
    let parsed = parse(&digest)?;
    if renew(&daemon, parsed).await? {
        return Ok(StatusCode::OK);
    }
    Err(Failed::new(StatusCode::NOT_FOUND, format!("blob \"{digest}\" not found")))
}

/// Takes a blob. The bytes are hashed as they come; those of an upload that broke off are resumed from by nobody, since
/// this protocol has no ranges.
pub(crate) async fn upload(
    State(daemon): State<Daemon>,
    Path(digest): Path<String>,
    body: Body,
) -> Result<StatusCode, Failed> {
    let digest = parse(&digest)?;
    let store = &daemon.library.store;
    if renew(&daemon, digest).await? {
        // To its end, or the client would see a broken connection instead of the answer.
        let mut rest = body.into_data_stream();
        while let Some(Ok(_)) = rest.next().await {}
        return Ok(StatusCode::OK);
    }
    let expected = match body.size_hint().exact() {
        Some(size) => Expected::Blob { digest, size },
        None => Expected::Digest(digest),
    };
    let id = IngestId::of(&digest);
    let begun = store.ingest(&id, expected).await.map_err(failed)?;
    let mut ingest = if begun.offset() == 0 {
        begun
    } else {
        begun.cancel().await.map_err(failed)?;
        store.ingest(&id, expected).await.map_err(failed)?
    };
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                ingest.cancel().await.map_err(failed)?;
                return Err(Failed::bad_request(format!("the upload broke off: {error}")));
            }
        };
        ingest.write(piece).await.map_err(failed)?;
    }
    // Not before: a slow client must not keep the collector away.
    let _guard = guard(&daemon).await?;
    ingest.commit().await.map_err(failed)?;
    lease(&daemon, digest).await?;
    Ok(StatusCode::CREATED)
}

/// Keeps the collector away.
async fn guard(daemon: &Daemon) -> Result<store::Guard, Failed> {
    crate::models::blocking(&daemon.library, |library| Ok(library.store.guard())).await
}

/// Leases a blob that is there; says whether it is.
async fn renew(daemon: &Daemon, digest: Digest) -> Result<bool, Failed> {
    let _guard = guard(daemon).await?;
    let there = daemon.library.store.size(&digest).await.map_err(failed)?.is_some();
    if there {
        lease(daemon, digest).await?;
    }
    Ok(there)
}

async fn lease(daemon: &Daemon, digest: Digest) -> Result<(), Failed> {
    crate::models::blocking(&daemon.library, move |library| {
        Ok(library.store.set_lease(&IngestId::of(&digest), &[digest], SystemTime::now() + LEASE)?)
    })
    .await
}

fn failed(error: content::Error) -> Failed {
    match error {
        content::Error::WrongDigest { expected, actual } => {
            Failed::bad_request(format!("digest mismatch, expected \"{expected}\", got \"{actual}\""))
        }
        content::Error::WrongSize { .. } => Failed::bad_request(error.to_string()),
        content::Error::Busy(_) => Failed::new(StatusCode::CONFLICT, error.to_string()),
        other => store_failure(&other),
    }
}

fn store_failure(error: &content::Error) -> Failed {
    let full = matches!(error, content::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull);
    let status = if full { StatusCode::INSUFFICIENT_STORAGE } else { StatusCode::INTERNAL_SERVER_ERROR };
    Failed::new(status, error.to_string())
}
