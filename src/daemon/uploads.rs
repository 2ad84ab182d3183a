//! `/api/blobs`: files that a client sends before it creates a model from them.

use std::time::{Duration, SystemTime};

use axum::body::{Body, HttpBody};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use content::{Digest, Expected, Ingest, IngestId, Ingester, Provider};
use futures_util::StreamExt;

use super::Daemon;
use super::error::Failed;

/// How long an upload is kept for the create that uses it.
const LEASE: Duration = Duration::from_hours(1);

fn parse(text: &str) -> Result<Digest, Failed> {
    // Some clients write `sha256-…`.
    let text = text.replacen("sha256-", "sha256:", 1);
    text.parse().map_err(|_| Failed::bad_request("invalid digest format"))
}

pub(super) async fn exists(State(daemon): State<Daemon>, Path(digest): Path<String>) -> Result<StatusCode, Failed> {
    let parsed = parse(&digest)?;
    match daemon.library.store.size(&parsed).await {
        Ok(Some(_)) => Ok(StatusCode::OK),
        Ok(None) => Err(Failed::new(StatusCode::NOT_FOUND, format!("blob \"{digest}\" not found"))),
        Err(error) => Err(failed(error)),
    }
}

/// Takes a blob. The bytes are hashed as they come; those of an upload that broke off are resumed from by nobody, since
/// this protocol has no ranges.
pub(super) async fn upload(
    State(daemon): State<Daemon>,
    Path(digest): Path<String>,
    body: Body,
) -> Result<StatusCode, Failed> {
    let digest = parse(&digest)?;
    let store = &daemon.library.store;
    // No collection between the commit and the lease.
    let guard = tokio::task::spawn_blocking({
        let store = store.clone();
        move || store.guard()
    });
    let _guard = guard.await.map_err(|e| Failed::from(anyhow::anyhow!(e)))?;
    if store.size(&digest).await.map_err(failed)?.is_some() {
        lease(&daemon, digest).await?;
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
        let piece = piece.map_err(|e| Failed::bad_request(format!("the upload broke off: {e}")))?;
        ingest.write(piece).await.map_err(failed)?;
    }
    ingest.commit().await.map_err(failed)?;
    lease(&daemon, digest).await?;
    Ok(StatusCode::CREATED)
}

async fn lease(daemon: &Daemon, digest: Digest) -> Result<(), Failed> {
    super::models::blocking(&daemon.library, move |library| {
        Ok(library.store.set_lease(&lease_id(&digest), &[digest], SystemTime::now() + LEASE)?)
    })
    .await
}

/// The lease of an uploaded blob.
pub(super) fn lease_id(digest: &Digest) -> IngestId {
    IngestId::of(digest)
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
