//! Blobs: `HEAD`, `GET` with ranges, `DELETE`.

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use content::{Descriptor, Digest, MediaType};

use super::range::{RequestedRange, wanted};
use super::refusal::ErrorReply;
use super::storage::{Lookup, Removal, Repository, Storage};
use super::uploads::{value, with_namespace};
use super::{DIGEST, Redirects, Server};
use crate::ErrorCode;

/// The smallest blob whose clients are sent to another server, in bytes. A redirect takes a request
/// more.
const REDIRECTED: u64 = 1 << 20;

/// `HEAD` and `GET`.
pub(super) async fn get<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    digest: &Digest,
    parts: &Parts,
) -> Result<Response, ErrorReply> {
    let unknown = || ErrorReply::new(ErrorCode::BlobUnknown, format!("blob `{digest}` is not in `{repository}`"));
    let lookup = if parts.method == Method::HEAD { Lookup::Promise } else { Lookup::Read };
    let blob = server.storage.blob(repository, digest, lookup).await?.ok_or_else(unknown)?;
    let size = blob.size;
    let tag = format!("\"{digest}\"");
    let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let mut response = Response::builder()
        .header(DIGEST, value(&digest.to_string()))
        .header(header::ETAG, value(&tag))
        .header(header::ACCEPT_RANGES, "bytes")
        // The content of a digest never changes.
        .header(header::CACHE_CONTROL, "max-age=31536000, immutable");
    if text(header::USER_AGENT).is_some_and(|agent| agent.starts_with("ollama/")) {
        let path = with_namespace(repository, format!("/v2/{}/blobs/{digest}", repository.name));
        if !server.access.anyone_may_pull() && parts.headers.contains_key(header::AUTHORIZATION) {
            // Ollama's range requests carry no authorization; they use the URL of the redirect.
            let separator = if path.contains('?') { '&' } else { '?' };
            let link = format!("{path}{separator}{}", server.access.sign_blob(&repository.name, digest));
            let response = response.status(StatusCode::TEMPORARY_REDIRECT).header(header::LOCATION, value(&link));
            return finish(response, Body::empty());
        }
        // Ollama treats a response without this header as an error.
        response = response.header(header::LOCATION, value(&path));
    }
    if names_tag(text(header::IF_NONE_MATCH), &tag) {
        return finish(response.status(StatusCode::NOT_MODIFIED), Body::empty());
    }
    if parts.method == Method::GET
        && let Some(link) = server.redirect(repository, &blob, &parts.headers).await?
    {
        // The link expires, so the redirect must not be kept.
        let response =
            Response::builder().status(StatusCode::TEMPORARY_REDIRECT).header(DIGEST, value(&digest.to_string()));
        return finish(
            response.header(header::CACHE_CONTROL, "no-store").header(header::LOCATION, link),
            Body::empty(),
        );
    }
    let asked = text(header::RANGE).filter(|_| text(header::IF_RANGE).is_none_or(|known| known == tag));
    let range = match wanted(asked, size) {
        RequestedRange::All => 0..size,
        RequestedRange::Part(range) => {
            let shown = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, value(&shown));
            range
        }
        RequestedRange::Nothing => {
            let message = format!("`{}` is beyond the {size} bytes of the blob", asked.unwrap_or_default());
            let refused = ErrorReply::with_status(StatusCode::RANGE_NOT_SATISFIABLE, ErrorCode::SizeInvalid, message);
            return Err(refused.header(header::CONTENT_RANGE, value(&format!("bytes */{size}"))));
        }
    };
    let response = response
        .header(header::CONTENT_TYPE, value(MediaType::OCTET_STREAM.as_str()))
        .header(header::CONTENT_LENGTH, range.end - range.start);
    let body = if parts.method == Method::HEAD {
        Body::empty()
    } else {
        Body::from_stream(server.storage.stream(repository, &blob, range).await?)
    };
    finish(response, body)
}

fn finish(response: axum::http::response::Builder, body: Body) -> Result<Response, ErrorReply> {
    Ok(response.body(body).map_err(|e| content::Error::Other(Box::new(e)))?)
}

/// Whether an `If-None-Match` header contains the tag.
pub fn names_tag(header: Option<&str>, tag: &str) -> bool {
    let same = |known: &str| known.trim().trim_start_matches("W/") == tag || known.trim() == "*";
    header.is_some_and(|known| known.split(',').any(same))
}

impl<S: Storage> Server<S> {
    /// A link to the blob at another server, if this client may follow one.
    async fn redirect(
        &self,
        of: &Repository,
        blob: &Descriptor,
        headers: &HeaderMap,
    ) -> Result<Option<String>, ErrorReply> {
        let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let stays = match &self.options.redirects {
            Redirects::Never => true,
            Redirects::Except(agents) => agents.iter().any(|prefix| agent.starts_with(prefix.as_str())),
        };
        if stays || blob.size < REDIRECTED { Ok(None) } else { Ok(self.storage.link(of, blob).await?) }
    }
}

/// `DELETE`.
pub(super) async fn delete<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    digest: &Digest,
) -> Result<Response, ErrorReply> {
    match server.storage.remove_blob(repository, digest).await? {
        Removal::Done => Ok(StatusCode::ACCEPTED.into_response()),
        Removal::NotThere | Removal::Pinned => {
            Err(ErrorReply::new(ErrorCode::BlobUnknown, format!("blob `{digest}` is not in `{repository}`")))
        }
        Removal::Announced => Err(ErrorReply::with_status(
            StatusCode::CONFLICT,
            ErrorCode::Denied,
            format!("a manifest with blob `{digest}` is being pushed to `{repository}`; retry later"),
        )),
        Removal::Referenced(by) => Err(ErrorReply::new(
            ErrorCode::Unsupported,
            format!("blob `{digest}` is part of manifest `{by}` of `{repository}`; delete that first"),
        )),
    }
}
