//! Lists of tags and repositories, in pages if the client requests it.

use axum::Json;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::refusal::ErrorReply;
use super::storage::{Repository, Storage};
use super::uploads::{value, with_namespace};
use super::{Server, route};
use crate::ErrorCode;

/// `GET tags/list`.
pub(super) async fn tags<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    uri: &Uri,
) -> Result<Response, ErrorReply> {
    let unknown = || ErrorReply::new(ErrorCode::NameUnknown, format!("there is no repository `{repository}`"));
    let tags = server.storage.tags(repository).await?.ok_or_else(unknown)?;
    let (tags, next) = page(&tags, uri)?;
    let path = with_namespace(repository, format!("/v2/{}/tags/list", repository.name));
    Ok(linked(&path, next, Json(json!({"name": repository.name.as_str(), "tags": tags}))))
}

/// `GET _catalog`.
pub(super) async fn catalog<S: Storage>(server: &Server<S>, uri: &Uri) -> Result<Response, ErrorReply> {
    let names = server.storage.repositories().await?;
    let (names, next) = page(&names, uri)?;
    Ok(linked("/v2/_catalog", next, Json(json!({"repositories": names}))))
}

/// The next `n` entries after `last`, and the query for the next page.
fn page<'a>(entries: &'a [String], uri: &Uri) -> Result<(&'a [String], Option<String>), ErrorReply> {
    let after = route::query(uri, "last").next();
    let start = after.map_or(0, |last| entries.partition_point(|entry| *entry <= last));
    let rest = &entries[start..];
    let Some(text) = route::query(uri, "n").next() else { return Ok((rest, None)) };
    let bad = |_| {
        let message = format!("`n={text}` is not a whole number");
        ErrorReply::with_status(StatusCode::BAD_REQUEST, ErrorCode::Unsupported, message)
    };
    let most: usize = text.parse().map_err(bad)?;
    let page = &rest[..most.min(rest.len())];
    let next = page.last().filter(|_| page.len() < rest.len()).map(|last| format!("n={most}&last={last}"));
    Ok((page, next))
}

fn linked(path: &str, next: Option<String>, body: Json<serde_json::Value>) -> Response {
    let Some(query) = next else { return body.into_response() };
    let separator = if path.contains('?') { '&' } else { '?' };
    ([(header::LINK, value(&format!("<{path}{separator}{query}>; rel=\"next\"")))], body).into_response()
}
