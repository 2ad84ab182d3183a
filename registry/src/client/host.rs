//! A registry, or a mirror of one, for the client.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use reqwest::{Response, StatusCode, Url};

use super::authorization::{Authorizer, UnauthorizedResponse};
use super::credential::Credentials;
use super::limiter::Limiter;
use super::limits::HostLimits;
use super::pace::Pace;
use super::payload::Request;
use super::settings::{HostSettings, api_host};
use super::wire::{Outgoing, Redirects, Wire};
use super::{Error, RedirectPolicy, challenge, connect, redirect};

/// Maximum number of 401 responses to one request.
const MOST_REFUSALS: usize = 3;

/// A registry, or a mirror of one. Clones share connections, tokens and the rate limit.
#[derive(Clone)]
pub struct Host {
    inner: Arc<HostState>,
    /// The rate limit and the urgency of the transfer that uses it.
    pace: Option<Pace>,
}

struct HostState {
    wire: Wire,
    settings: HostSettings,
    authorizer: Authorizer,
    limiter: Option<Limiter>,
    /// The path in front of `/v2/`.
    prefix: String,
    /// The registry that a mirror serves, for the query parameter `ns`.
    namespace: Option<String>,
    kind: HostKind,
}

/// The relation of a host to a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostKind {
    Registry,
    Mirror,
    /// A server of a colleague, which may have blobs, and is not trusted to say what a tag means.
    Peer,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.inner.wire.base.as_str();
        f.debug_struct("Host").field("name", &self.name()).field("base", &base).finish_non_exhaustive()
    }
}

impl Host {
    /// Creates a registry client from its usual name: `HOST` or `HOST:PORT`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Settings`] if the name is not a host or a setting cannot be used; [`Error::File`]
    /// if the file of certificate authorities cannot be read.
    pub fn new(host: &str, settings: HostSettings, credentials: Arc<dyn Credentials>) -> Result<Self, Error> {
        Self::with_limits(host, settings, credentials, HostLimits::default())
    }

    /// [`Host::new`] with other limits.
    pub(super) fn with_limits(
        host: &str,
        settings: HostSettings,
        credentials: Arc<dyn Credentials>,
        limits: HostLimits,
    ) -> Result<Self, Error> {
        let scheme = if settings.plain_http { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{}/", api_host(host))).ok();
        let base =
            base.filter(|url| is_bare(url) && url.path() == "/").ok_or_else(|| not_a_host(host, "`HOST:PORT`"))?;
        Self::at(host.to_owned(), base, None, Parts { settings, credentials, limits, kind: HostKind::Registry })
    }

    /// A mirror of `of_host` at `base_url` (`https://mirror.example`, or with a path in front of
    /// `/v2/`). Requests name the registry in the query parameter `ns`, as containerd does, unless
    /// the mirror is that registry. The URL determines the scheme; the settings do not.
    ///
    /// # Errors
    /// See [`Host::new`].
    pub fn mirror(
        base_url: &str,
        of_host: &str,
        settings: HostSettings,
        credentials: Arc<dyn Credentials>,
    ) -> Result<Self, Error> {
        let (url, name) = base(base_url)?;
        let namespace = (name != api_host(of_host)).then(|| of_host.to_owned());
        let parts = Parts { settings, credentials, limits: HostLimits::default(), kind: HostKind::Mirror };
        Self::at(name, url, namespace, parts)
    }

    /// A server at `base_url` that may have blobs of `of_host`, such as a daemon on the same
    /// network. It is asked for digests only, and for a short time.
    ///
    /// # Errors
    /// See [`Host::new`].
    pub fn peer(
        base_url: &str,
        of_host: &str,
        settings: HostSettings,
        credentials: Arc<dyn Credentials>,
    ) -> Result<Self, Error> {
        let (url, name) = base(base_url)?;
        let parts = Parts { settings, credentials, limits: HostLimits::of_peer(), kind: HostKind::Peer };
        Self::at(name, url, Some(of_host.to_owned()), parts)
    }

    fn at(name: String, mut base: Url, namespace: Option<String>, parts: Parts) -> Result<Self, Error> {
        let Parts { settings, credentials, mut limits, kind } = parts;
        limits.stall = settings.stall.unwrap_or(limits.stall);
        if settings.bytes_per_second == Some(0) {
            let text = format!("`{name}` may have no bytes in a second; set at least 1, or leave the setting out");
            return Err(Error::Settings(text));
        }
        let path = base.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/v2").unwrap_or(path).to_owned();
        base.set_path("/");
        let redirect_policy = RedirectPolicy::for_server(&base, settings.proxy.as_deref(), &settings.leads_to);
        let client = connect::client(&base, &redirect_policy, &settings, &limits)?;
        let limiter = settings.bytes_per_second.map(|rate| Limiter::new(Some(rate), Instant::now()));
        let wire = Wire { name, base, redirect_policy, client, limits };
        let authorizer = Authorizer::new(credentials);
        let inner = Arc::new(HostState { wire, settings, authorizer, limiter, prefix, namespace, kind });
        Ok(Self { inner, pace: None })
    }

    /// Requests wait for their turn and for the limits of `pace`.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// Whether this host is another server than the registry: a mirror or a peer.
    pub(super) fn is_mirror(&self) -> bool {
        self.inner.kind != HostKind::Registry
    }

    /// Whether this host may say what a tag means.
    pub(super) fn knows_tags(&self) -> bool {
        self.inner.kind != HostKind::Peer
    }

    /// The name for errors, progress and logins.
    pub fn name(&self) -> &str {
        &self.inner.wire.name
    }

    /// The settings of the host.
    pub fn settings(&self) -> &HostSettings {
        &self.inner.settings
    }

    /// The URL of a path that begins with `/v2/` and may have a query. The path is encoded where
    /// necessary; the query is used unchanged.
    pub fn url(&self, path: &str) -> Url {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let mut url = self.inner.wire.base.clone();
        url.set_path(&format!("{}{path}", self.inner.prefix));
        url.set_query(query);
        if let Some(namespace) = &self.inner.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        url
    }

    /// Sends a request and returns the response, also if its status is an error, with these
    /// exceptions. After 401 it is sent again with credentials. Redirects are followed. After 408,
    /// 429, 500, 502, 503, 504 and broken connections it is retried for about half a minute, or
    /// longer if the registry requests that. A `PATCH`, and a `PUT` of a stream, is retried only if
    /// it cannot have had an effect.
    ///
    /// A retried request may have had its effect the first time. So the caller must expect that a
    /// finished upload is gone, or that a chunk is refused with 416.
    ///
    /// The rate limit is not applied here to the bytes that are sent; the payload's stream calls
    /// [`Host::throttle`].
    ///
    /// # Errors
    /// All but [`Error::TooLarge`]. The status 403 and 404 are responses, not errors.
    pub async fn send(&self, request: Request<'_>) -> Result<Response, Error> {
        let HostState { wire, authorizer, .. } = &*self.inner;
        wire.redirect_policy
            .check_step(&wire.base, &request.url)
            .map_err(|reason| Error::Redirects { host: wire.name.clone(), reason })?;
        let ours = redirect::same_origin(&request.url, &wire.base);
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        let began = Instant::now();
        let mut refusals = 0;
        loop {
            let used = if ours { authorizer.current(wire, request.scope).await? } else { None };
            let outgoing = Outgoing {
                method: &request.method,
                url: &request.url,
                headers: &request.headers,
                payload: &request.payload,
                authorization: used.as_ref().map(|grant| &grant.header),
                redirects: Redirects::Follow,
            };
            let response = wire.exchange(&outgoing).await?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return Ok(response);
            }
            let place = response.url().clone();
            let challenges = challenge::read(response.headers());
            let summary = wire.summary(response).await;
            if !redirect::same_origin(&place, &wire.base) {
                let reason = format!(
                    "{}, the target of its redirect, requires a separate login: {summary}",
                    wire.name_of(&place)
                );
                return Err(Error::unauthorized(&wire.name, reason));
            }
            refusals += 1;
            if refusals >= MOST_REFUSALS {
                return Err(Error::unauthorized(&wire.name, format!("it refuses every token: {summary}")));
            }
            authorizer
                .refused(wire, UnauthorizedResponse { scope: request.scope, used, began, challenges, summary })
                .await?;
        }
    }

    /// Returns the next piece of a body; `None` at its end. Waits as the rate limit requires.
    ///
    /// # Errors
    /// [`Error::Stalled`] after half a minute without a byte; [`Error::Unreachable`] if the body
    /// breaks off.
    pub async fn next_piece(&self, response: &mut Response) -> Result<Option<Bytes>, Error> {
        let piece = self.inner.wire.next_piece(response).await?;
        if let Some(piece) = &piece {
            self.throttle(piece.len()).await;
        }
        Ok(piece)
    }

    /// Waits until `bytes` more bytes may be sent. [`Host::next_piece`] counts received bytes.
    pub async fn throttle(&self, bytes: usize) {
        if let Some(limiter) = &self.inner.limiter {
            limiter.take(bytes).await;
        }
        if let Some(pace) = &self.pace {
            pace.take(bytes).await;
        }
    }

    /// Reads the whole body of a small response.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above `limit` bytes; errors of [`Host::next_piece`].
    pub async fn body(&self, response: Response, limit: usize) -> Result<Bytes, Error> {
        let body = self.inner.wire.body(response, limit).await?;
        self.throttle(body.len()).await;
        Ok(body)
    }

    /// Turns an unexpected response into an error. `what` is the requested object for the message,
    /// for example ``blob `sha256:…` ``. At most 64 KiB of the body are read.
    pub async fn refusal(&self, what: &str, response: Response) -> Error {
        self.inner.wire.refusal(what, response).await
    }
}

/// The arguments that registries and mirrors share.
struct Parts {
    settings: HostSettings,
    credentials: Arc<dyn Credentials>,
    limits: HostLimits,
    kind: HostKind,
}

/// Parses a base URL. Also returns its host and port, which are the name of the server.
fn base(text: &str) -> Result<(Url, String), Error> {
    let url = Url::parse(text).ok().filter(is_bare);
    let url = url.ok_or_else(|| not_a_host(text, "`https://HOST:PORT` or `https://HOST:PORT/PATH`"))?;
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let name = format!("{}{port}", url.host_str().unwrap_or_default());
    Ok((url, name))
}

/// Whether a URL has only a scheme (HTTP or HTTPS), a host and a path.
fn is_bare(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.host_str().is_some_and(|host| !host.is_empty())
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
}

fn not_a_host(found: &str, expected: &str) -> Error {
    // The text may contain a password.
    let shown: String = found.rsplit('@').next().unwrap_or_default().chars().take(100).collect();
    Error::Settings(format!("`{shown}` is not a registry: expected {expected}"))
}
