//! Lists of tags and repositories, in pages if the client requests it.

use axum::Json;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::refusal::ErrorReply;
use super::storage::{Listed, Page, Repository, Storage};
use super::uploads::{value, with_namespace};
use super::{Server, route};
use crate::ErrorCode;

/// Maximum number of entries in a response.
const MOST: usize = 10_000;

/// `GET tags/list`.
pub(super) async fn tags<S: Storage>(
    server: &Server<S>,
    repository: &Repository,
    uri: &Uri,
) -> Result<Response, ErrorReply> {
    let unknown = || ErrorReply::new(ErrorCode::NameUnknown, format!("there is no repository `{repository}`"));
    let page = page(uri, MOST)?;
    let tags = server.storage.tags(repository, &page).await?.ok_or_else(unknown)?;
    let path = with_namespace(repository, format!("/v2/{}/tags/list", repository.name));
    let next = next(&tags, &page, Clone::clone);
    Ok(linked(&path, next, Json(json!({"name": repository.name.as_str(), "tags": tags.entries}))))
}

/// `GET _catalog`.
pub(super) async fn catalog<S: Storage>(server: &Server<S>, uri: &Uri) -> Result<Response, ErrorReply> {
    let page = page(uri, MOST)?;
    let names = server.storage.repositories(&page).await?;
    let next = next(&names, &page, Clone::clone);
    Ok(linked("/v2/_catalog", next, Json(json!({"repositories": names.entries}))))
}

/// The page that a request names: `n` entries after `last`, at most `most`.
pub(super) fn page(uri: &Uri, most: usize) -> Result<Page, ErrorReply> {
    let after = route::query(uri, "last").next();
    let Some(text) = route::query(uri, "n").next() else { return Ok(Page { after, most }) };
    let bad = |_| {
        let message = format!("`n={text}` is not a whole number");
        ErrorReply::with_status(StatusCode::BAD_REQUEST, ErrorCode::Unsupported, message)
    };
    let asked: usize = text.parse().map_err(bad)?;
    Ok(Page { after, most: asked.min(most) })
}

/// The query for the next page, if there is one.
pub(super) fn next<T>(listed: &Listed<T>, page: &Page, name: impl Fn(&T) -> String) -> Option<String> {
    let last = listed.entries.last().filter(|_| listed.has_more)?;
    Some(format!("n={}&last={}", page.most, name(last)))
}

/// Adds the link to the next page.
pub(super) fn linked(path: &str, next: Option<String>, body: impl IntoResponse) -> Response {
    let Some(query) = next else { return body.into_response() };
    let separator = if path.contains('?') { '&' } else { '?' };
    ([(header::LINK, value(&format!("<{path}{separator}{query}>; rel=\"next\"")))], body).into_response()
}
