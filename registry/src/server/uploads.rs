//! Uploads: `POST`, `PATCH`, `PUT`, `GET` and `DELETE` below `blobs/uploads/`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use content::{Digest, Expected, Ingest, IngestId};
use futures_util::StreamExt;

use super::quota::share_of;
use super::refusal::ErrorReply;
use super::sessions::LockedUpload;
use super::storage::{Repository, Storage};
use super::sync::{finished, spawn, timeout};
use super::{Server, range, route};
use crate::{ErrorCode, RepositoryName};

/// Pieces of a body are collected up to this size before they are hashed and written, in bytes.
const PIECE: usize = 512 << 10;
/// Timeout for a client that sends no data in the middle of a body. Until then it keeps its upload
/// locked.
const STALL: Duration = Duration::from_mins(1);
/// The id of the upload, for Docker's clients.
const DOCKER_UPLOAD: HeaderName = HeaderName::from_static("docker-upload-uuid");

/// `POST`: begins an upload, receives a whole blob, or mounts one.
pub(super) async fn post<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    parts: &Parts,
    body: Body,
) -> Result<Response, ErrorReply> {
    let uri = &parts.uri;
    if let Some(digest) = route::query(uri, "mount").next() {
        let from = route::query(uri, "from").next().filter(|name| !name.is_empty());
        if let Some(response) = mount(server, repository, &digest, from, &parts.headers).await? {
            return Ok(response);
        }
    }
    let given = route::query(uri, "digest").next().map(|text| digest(&text)).transpose()?;
    let peer = peer(parts);
    // A POST with a digest and no body begins an upload (Ollama sends such requests), unless the
    // digest is that of an empty blob.
    let empty = body.size_hint().exact() == Some(0);
    if let Some(given) = given.filter(|given| !empty || *given == of_nothing(given)) {
        return whole(server, repository, given, Incoming { peer, body }).await;
    }
    let (own, to) = (server.clone(), repository.clone());
    let begun = spawn(async move {
        let id = own.sessions.begin(&own.storage, &to, peer).await?;
        let (id, mut held) = hold(&own, &to, id.as_str()).await?;
        held.pause().await.map(|()| id).map_err(ErrorReply::from)
    });
    let id = finished(begun).await??;
    Ok(progress(repository, &id, 0, StatusCode::ACCEPTED))
}

/// `GET`: the offset of an upload.
pub(super) async fn status<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    id: &str,
) -> Result<Response, ErrorReply> {
    let (id, mut held) = hold(server, repository, id).await?;
    let offset = held.offset();
    held.pause().await?;
    Ok(progress(repository, &id, offset, StatusCode::NO_CONTENT))
}

/// `DELETE`: cancels an upload.
pub(super) async fn cancel<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    id: &str,
) -> Result<Response, ErrorReply> {
    let (id, held) = hold(server, repository, id).await?;
    let server = server.clone();
    finished(spawn(async move { give_up(&server, &id, held).await })).await??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `PATCH`: receives a chunk.
pub(super) async fn patch<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    id: &str,
    parts: &Parts,
    body: Body,
) -> Result<Response, ErrorReply> {
    let (id, held) = hold_in_order(server, repository, id, parts, body.size_hint().exact()).await?;
    let (_, offset) = receive(server, &id, held, Incoming { peer: peer(parts), body }, Afterwards::Pause).await?;
    Ok(progress(repository, &id, offset, StatusCode::ACCEPTED))
}

/// `PUT`: receives the last chunk, the whole blob or nothing, then commits.
pub(super) async fn put<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    id: &str,
    parts: &Parts,
    body: Body,
) -> Result<Response, ErrorReply> {
    let missing = || ErrorReply::new(ErrorCode::DigestInvalid, "the query parameter `digest` is missing");
    let given = digest(&route::query(&parts.uri, "digest").next().ok_or_else(missing)?)?;
    let (id, held) = hold_in_order(server, repository, id, parts, body.size_hint().exact()).await?;
    finish(server, repository, (id, held), given, Incoming { peer: peer(parts), body }).await
}

/// How an upload goes on after a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Afterwards {
    /// Another request continues it.
    Pause,
    /// This request commits it.
    Commit,
}

/// The body of an upload request, and the address that it is counted for.
struct Incoming {
    peer: Option<IpAddr>,
    body: Body,
}

/// Receives a whole blob. No client knows the id of this upload, so it is cancelled if it fails.
/// This runs in its own task, so that it also happens if the client disconnects.
async fn whole<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    digest: Digest,
    incoming: Incoming,
) -> Result<Response, ErrorReply> {
    let (server, repository) = (server.clone(), repository.clone());
    let work = spawn(async move {
        let id = server.sessions.begin(&server.storage, &repository, incoming.peer).await?;
        let held = hold(&server, &repository, id.as_str()).await?;
        let done = finish(&server, &repository, held, digest, incoming).await;
        if done.is_err()
            && let Ok((id, held)) = hold(&server, &repository, id.as_str()).await
            && let Err(error) = give_up(&server, &id, held).await
        {
            tracing::warn!("an upload that failed stays for now: {error}");
        }
        done
    });
    finished(work).await?
}

/// Cancels an upload.
async fn give_up<S: Storage>(
    server: &Server<S>,
    id: &IngestId,
    mut held: LockedUpload<S::Ingest>,
) -> Result<(), content::Error> {
    let cancelled = match held.take() {
        Some(ingest) => ingest.cancel().await,
        None => Ok(()),
    };
    server.sessions.forget(id);
    cancelled
}

/// The address of the client, or its network, whose share of uploads this upload counts for.
fn peer(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| share_of(peer.ip()))
}

/// Parses a digest of a request.
pub(super) fn digest(text: &str) -> Result<Digest, ErrorReply> {
    text.parse()
        .map_err(|e: content::digest::ParseDigestError| ErrorReply::new(ErrorCode::DigestInvalid, e.to_string()))
}

fn of_nothing(like: &Digest) -> Digest {
    content::Hasher::new(like.algorithm()).finish()
}

async fn mount<S: Storage>(
    server: &Arc<Server<S>>,
    to: &Repository,
    text: &str,
    from: Option<String>,
    headers: &HeaderMap,
) -> Result<Option<Response>, ErrorReply> {
    // A client whose blob cannot be mounted gets an upload instead.
    let Ok(digest) = text.parse::<Digest>() else { return Ok(None) };
    let from = match from {
        Some(name) => match RepositoryName::parse(&name) {
            Ok(name) => Some(Repository { name, ..to.clone() }),
            Err(_) => return Ok(None),
        },
        None => None,
    };
    if !server.may_mount(headers, from.as_ref()).await {
        return Ok(None);
    }
    let mounted = server.storage.mount(from.as_ref(), to, &digest).await?;
    Ok(mounted.then(|| created(to, &digest)))
}

async fn hold<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    id: &str,
) -> Result<(IngestId, LockedUpload<S::Ingest>), ErrorReply> {
    let held = server.sessions.hold(&server.storage, repository, id).await?;
    held.ok_or_else(|| unknown_upload(repository, id))
}

/// Locks an upload for the chunk of a request, which must begin at its offset.
async fn hold_in_order<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    id: &str,
    parts: &Parts,
    length: Option<u64>,
) -> Result<(IngestId, LockedUpload<S::Ingest>), ErrorReply> {
    let (id, mut held) = hold(server, repository, id).await?;
    if let Err(refused) = check_order(repository, &id, held.offset(), &parts.headers, length) {
        held.pause().await?;
        return Err(refused);
    }
    Ok((id, held))
}

fn unknown_upload(repository: &Repository, id: &str) -> ErrorReply {
    let shown: String = id.chars().take(80).collect();
    ErrorReply::new(ErrorCode::BlobUploadUnknown, format!("there is no upload `{shown}` in `{repository}`"))
}

/// Checks the `Content-Range` of a chunk, if there is one: it must begin at the current offset.
fn check_order(
    repository: &Repository,
    id: &IngestId,
    offset: u64,
    headers: &HeaderMap,
    length: Option<u64>,
) -> Result<(), ErrorReply> {
    let Some(text) = headers.get(header::CONTENT_RANGE) else { return Ok(()) };
    let text = text.to_str().unwrap_or("?");
    let refuse = |reason: String| {
        ErrorReply::with_status(StatusCode::RANGE_NOT_SATISFIABLE, ErrorCode::BlobUploadInvalid, reason)
            .header(header::LOCATION, value(&location(repository, id)))
            .header(header::RANGE, value(&received(offset)))
    };
    let Some(chunk) = range::chunk(text) else {
        return Err(refuse(format!("`Content-Range: {text}` is malformed, expected FIRST-LAST")));
    };
    if chunk.start != offset {
        return Err(refuse(format!("the chunk begins at byte {}, the upload is at byte {offset}", chunk.start)));
    }
    let announced = chunk.end - chunk.start;
    match length {
        Some(actual) if actual != announced => Err(ErrorReply::new(
            ErrorCode::SizeInvalid,
            format!("`Content-Range: {text}` announces {announced} bytes, `Content-Length` {actual}"),
        )),
        _ => Ok(()),
    }
}

/// Writes a body to an upload, in its own task, so that the received bytes stay if the client
/// disconnects. Returns the offset behind it.
async fn receive<S: Storage>(
    server: &Arc<Server<S>>,
    id: &IngestId,
    mut held: LockedUpload<S::Ingest>,
    incoming: Incoming,
    afterwards: Afterwards,
) -> Result<(LockedUpload<S::Ingest>, u64), ErrorReply> {
    let (server, id) = (server.clone(), id.clone());
    let work = spawn(async move {
        let Incoming { peer, body } = incoming;
        if let Some(length) = body.size_hint().exact() {
            held.plan_for(length);
        }
        let mut stream = body.into_data_stream();
        let mut piece = BytesMut::new();
        let result = loop {
            let Ok(next) = timeout(STALL, stream.next()).await else {
                break Err(ErrorReply::new(
                    ErrorCode::SizeInvalid,
                    "no data for a minute; query the upload's status and resume",
                ));
            };
            match next {
                Some(Ok(bytes)) => {
                    if let Err(refused) = server.sessions.quota.take(&id, peer, bytes.len() as u64) {
                        break Err(refused);
                    }
                    piece.extend_from_slice(&bytes);
                    if piece.len() >= PIECE
                        && let Err(refused) = server.write(&id, &mut held, piece.split().freeze()).await
                    {
                        break Err(refused);
                    }
                }
                Some(Err(error)) => break Err(broken(&error)),
                None => break Ok(()),
            }
        };
        // Bytes from before an interruption are kept too: the client resumes after them.
        let last = if piece.is_empty() { Ok(()) } else { server.write(&id, &mut held, piece.freeze()).await };
        let offset = held.offset();
        let received = result.and(last);
        if received.is_err() || afterwards == Afterwards::Pause {
            let paused = held.pause().await.map_err(ErrorReply::from);
            return received.and(paused).map(|()| (held, offset));
        }
        Ok((held, offset))
    });
    finished(work).await?
}

impl<S: Storage> Server<S> {
    /// Writes to an upload. If the disk is full, the upload is cancelled and no longer counts.
    async fn write(&self, id: &IngestId, held: &mut LockedUpload<S::Ingest>, bytes: Bytes) -> Result<(), ErrorReply> {
        let written = held.write(bytes).await;
        if written.as_ref().is_err_and(content::Error::is_full) {
            self.sessions.quota.end(id);
        }
        Ok(written?)
    }
}

fn broken(error: &axum::Error) -> ErrorReply {
    ErrorReply::new(
        ErrorCode::SizeInvalid,
        format!("the body broke off: {error}; query the upload's status and resume"),
    )
}

async fn finish<S: Storage>(
    server: &Arc<Server<S>>,
    repository: &Repository,
    (id, held): (IngestId, LockedUpload<S::Ingest>),
    digest: Digest,
    incoming: Incoming,
) -> Result<Response, ErrorReply> {
    let (mut held, _) = receive(server, &id, held, incoming, Afterwards::Commit).await?;
    let (server, to) = (server.clone(), repository.clone());
    // The commit also completes if the client disconnects; the client can then check whether the
    // blob exists. Other requests for the upload wait meanwhile.
    let work = spawn(async move {
        let ingest = held.take().ok_or_else(|| unknown_upload(&to, id.as_str()))?;
        let done = server.storage.finish(&to, ingest, Expected::Digest(digest)).await;
        server.sessions.forget(&id);
        done.map(drop).map_err(ErrorReply::from)
    });
    finished(work).await??;
    Ok(created(repository, &digest))
}

/// The response with the offset of an upload.
fn progress(repository: &Repository, id: &IngestId, offset: u64, status: StatusCode) -> Response {
    let headers = [
        (header::LOCATION, value(&location(repository, id))),
        (header::RANGE, value(&received(offset))),
        (DOCKER_UPLOAD, value(id.as_str())),
    ];
    (status, headers).into_response()
}

/// The received bytes, up to the last one; `0-0` also if there are none.
fn received(offset: u64) -> String {
    format!("0-{}", offset.saturating_sub(1))
}

fn location(repository: &Repository, id: &IngestId) -> String {
    with_namespace(repository, format!("/v2/{}/blobs/uploads/{id}", repository.name))
}

/// The response for a blob that is now in the repository.
fn created(repository: &Repository, digest: &Digest) -> Response {
    let location = with_namespace(repository, format!("/v2/{}/blobs/{digest}", repository.name));
    let headers = [(header::LOCATION, value(&location)), (super::DIGEST, value(&digest.to_string()))];
    (StatusCode::CREATED, headers).into_response()
}

/// Adds the namespace of a repository to a path.
pub(super) fn with_namespace(repository: &Repository, path: String) -> String {
    match &repository.namespace {
        Some(namespace) => format!("{path}?ns={namespace}"),
        None => path,
    }
}

/// Makes a header value from text that was checked already.
pub(super) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::copy_from_slice(text.as_bytes()))
        .unwrap_or_else(|_| HeaderValue::from_static(""))
}
