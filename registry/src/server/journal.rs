//! The journal: one entry for each request, after its response was made, and for each change that
//! the registry makes by its rules. Audit logs, webhooks and metrics of repositories are made from
//! it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::HttpBody;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use content::Digest;

use super::DIGEST;
use super::access::TOKEN_PATH;
use super::route::{self, Object, Route, query};
use super::storage::Reference;
use crate::{ErrorCode, RepositoryName};

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The base of the API.
    Base,
    /// A token.
    Token,
    /// The list of repositories.
    ListRepositories,
    /// The list of tags.
    ListTags,
    /// The list of manifests about a digest.
    ListReferrers,
    /// Whether a manifest exists (`HEAD`).
    CheckManifest,
    /// The bytes of a manifest.
    PullManifest,
    /// A new manifest.
    PushManifest,
    /// The removal of a tag or manifest.
    DeleteManifest,
    /// Whether a blob exists (`HEAD`).
    CheckBlob,
    /// The bytes of a blob.
    PullBlob,
    /// The beginning, a part, the state or the end of an upload, and mounts.
    PushBlob,
    /// The removal of a blob.
    DeleteBlob,
    /// A path or method that the protocol does not have.
    Unknown,
}

impl Operation {
    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Token => "token",
            Self::ListRepositories => "repositories.list",
            Self::ListTags => "tags.list",
            Self::ListReferrers => "referrers.list",
            Self::CheckManifest => "manifest.check",
            Self::PullManifest => "manifest.pull",
            Self::PushManifest => "manifest.push",
            Self::DeleteManifest => "manifest.delete",
            Self::CheckBlob => "blob.check",
            Self::PullBlob => "blob.pull",
            Self::PushBlob => "blob.push",
            Self::DeleteBlob => "blob.delete",
            Self::Unknown => "unknown",
        }
    }

    fn of(method: &Method, route: &Route) -> Self {
        let Route::In(_, object) = route else {
            return if *route == Route::Base { Self::Base } else { Self::ListRepositories };
        };
        match (method.as_str(), object) {
            ("HEAD", Object::Manifest(_)) => Self::CheckManifest,
            ("GET", Object::Manifest(_)) => Self::PullManifest,
            ("PUT", Object::Manifest(_)) => Self::PushManifest,
            ("DELETE", Object::Manifest(_)) => Self::DeleteManifest,
            ("HEAD", Object::Blob(_)) => Self::CheckBlob,
            ("GET", Object::Blob(_)) => Self::PullBlob,
            ("DELETE", Object::Blob(_)) => Self::DeleteBlob,
            (_, Object::Uploads | Object::Upload(_)) => Self::PushBlob,
            ("GET" | "HEAD", Object::Tags) => Self::ListTags,
            ("GET" | "HEAD", Object::Referrers(_)) => Self::ListReferrers,
            _ => Self::Unknown,
        }
    }
}

/// Why something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A request of a client.
    Request,
    /// The retention of a rule removed it.
    Retention,
    /// It was copied from another registry.
    Copy,
}

impl Cause {
    /// The name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Retention => "retention",
            Self::Copy => "copy",
        }
    }
}

/// A request and its response, or a change that the registry made by its rules.
#[derive(Clone, Debug)]
pub struct JournalEntry {
    /// When the request arrived, or the change was made.
    pub time: SystemTime,
    /// Whether it is a request.
    pub cause: Cause,
    /// The subject of the request, or the request that would have made the change.
    pub operation: Operation,
    /// The repository in the path.
    pub repository: Option<String>,
    /// The tag, digest or upload in the path.
    pub reference: Option<String>,
    /// Tags that a pushed manifest gets besides the one in the path.
    pub tags: Vec<String>,
    /// The user; `None` without a login.
    pub user: Option<String>,
    /// The address of the connection, which is a proxy's if there is one.
    pub peer: Option<SocketAddr>,
    /// `X-Forwarded-For` as the client sent it. Only a proxy makes it trustworthy.
    pub forwarded_for: Option<String>,
    /// `User-Agent`.
    pub user_agent: Option<String>,
    /// The status of the response; `None` if the client disconnected before it. A change by rules
    /// has the status of the request that would have made it.
    pub status: Option<u16>,
    /// The reason of a refusal.
    pub error: Option<ErrorCode>,
    /// The digest of the manifest or blob, if the response names it.
    pub digest: Option<Digest>,
    /// The `Content-Type` of a pushed or pulled manifest.
    pub media_type: Option<String>,
    /// Bytes of the request's body, if it has a `Content-Length`.
    pub received: u64,
    /// Bytes of the response's body. A client that disconnects gets fewer.
    pub sent: u64,
}

impl JournalEntry {
    /// An entry for a removal by retention.
    pub fn removal(repository: &RepositoryName, reference: &Reference, digest: Digest) -> Self {
        let status = StatusCode::ACCEPTED;
        Self::change(Cause::Retention, Operation::DeleteManifest, status, repository, reference, digest)
    }

    /// An entry for a manifest that was copied from another registry.
    pub fn copy(repository: &RepositoryName, reference: &Reference, digest: Digest) -> Self {
        Self::change(Cause::Copy, Operation::PushManifest, StatusCode::CREATED, repository, reference, digest)
    }

    fn change(
        cause: Cause,
        operation: Operation,
        status: StatusCode,
        repository: &RepositoryName,
        reference: &Reference,
        digest: Digest,
    ) -> Self {
        Self {
            cause,
            operation,
            repository: Some(repository.to_string()),
            reference: Some(reference.to_string()),
            status: Some(status.as_u16()),
            digest: Some(digest),
            ..Self::empty()
        }
    }

    fn empty() -> Self {
        Self {
            time: SystemTime::now(),
            cause: Cause::Request,
            operation: Operation::Unknown,
            repository: None,
            reference: None,
            tags: Vec::new(),
            user: None,
            peer: None,
            forwarded_for: None,
            user_agent: None,
            status: None,
            error: None,
            digest: None,
            media_type: None,
            received: 0,
            sent: 0,
        }
    }

    /// The entry of a request whose path was not looked at yet.
    fn of_request(request: &Request) -> Self {
        let headers = request.headers();
        Self {
            peer: request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer),
            forwarded_for: text(headers, &HeaderName::from_static("x-forwarded-for")),
            user_agent: text(headers, &header::USER_AGENT),
            media_type: text(headers, &header::CONTENT_TYPE),
            received: request.body().size_hint().exact().unwrap_or_default(),
            ..Self::empty()
        }
    }

    /// Sets the subject of the request.
    fn set_subject(&mut self, method: &Method, uri: &Uri, route: &Route) {
        self.operation = Operation::of(method, route);
        if self.operation == Operation::PushManifest {
            self.tags = query(uri, "tag").collect();
        }
        let Route::In(repository, object) = route else { return };
        self.repository = Some(repository.to_string());
        self.reference = match object {
            Object::Blob(text) | Object::Upload(text) | Object::Referrers(text) => Some(text.clone()),
            Object::Manifest(at) => Some(at.to_string()),
            Object::Uploads | Object::Tags => None,
        };
        if let Object::Manifest(Reference::Digest(digest)) = object {
            self.digest = Some(*digest);
        }
    }

    /// Sets the result.
    fn set_result(&mut self, response: &Response) {
        let headers = response.headers();
        self.status = Some(response.status().as_u16());
        self.error = response.extensions().get::<ErrorCode>().copied();
        if let Some(digest) = text(headers, &DIGEST).and_then(|text| text.parse().ok()) {
            self.digest = Some(digest);
        }
        if self.operation == Operation::PullManifest {
            self.media_type = text(headers, &header::CONTENT_TYPE);
        }
        self.sent = response.body().size_hint().exact().unwrap_or_default();
    }

    /// Whether the request was executed.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status < 400)
    }
}

/// Gets all entries. It runs on the thread of a request, so it must be quick.
pub trait Journal: fmt::Debug + Send + Sync + 'static {
    /// Takes an entry.
    fn record(&self, entry: &JournalEntry);
}

/// A journal that keeps nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn record(&self, _: &JournalEntry) {}
}

/// A response extension: the server has recorded the request.
#[derive(Clone, Copy, Debug)]
struct Recorded;

/// A middleware that records requests for the registry that are answered before they reach the
/// server: refused for their key or origin, for example.
pub async fn record_unserved(State(journal): State<Arc<dyn Journal>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path != "/v2" && !path.starts_with("/v2/") {
        return next.run(request).await;
    }
    let mut entry = JournalEntry::of_request(&request);
    if path == TOKEN_PATH {
        entry.operation = Operation::Token;
    } else if let Ok(Some(route)) = route::parse(request.uri()) {
        entry.set_subject(request.method(), request.uri(), &route);
    }
    let response = next.run(request).await;
    if response.extensions().get::<Recorded>().is_none() {
        entry.set_result(&response);
        journal.record(&entry);
    }
    response
}

/// An entry that is recorded when it is dropped, also if the client disconnects.
pub(super) struct OpenEntry<'a> {
    journal: &'a dyn Journal,
    entry: JournalEntry,
}

impl<'a> OpenEntry<'a> {
    pub(super) fn begin(journal: &'a dyn Journal, request: &Request) -> Self {
        let entry = JournalEntry::of_request(request);
        Self { journal, entry }
    }

    /// Sets the operation of a request for a token.
    pub(super) fn is_for_token(&mut self) {
        self.entry.operation = Operation::Token;
    }

    /// Sets the subject of the request.
    pub(super) fn is_about(&mut self, method: &Method, uri: &Uri, route: &Route) {
        self.entry.set_subject(method, uri, route);
    }

    /// Sets the user.
    pub(super) fn is_from(&mut self, user: Option<String>) {
        self.entry.user = user;
    }

    /// Sets the result, and records the entry.
    pub(super) fn end(mut self, response: &mut Response) {
        self.entry.set_result(response);
        response.extensions_mut().insert(Recorded);
    }
}

impl Drop for OpenEntry<'_> {
    fn drop(&mut self) {
        self.journal.record(&self.entry);
    }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
