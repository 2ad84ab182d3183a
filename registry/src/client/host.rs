//! A registry, or a mirror of one, as the client speaks with it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use reqwest::{Response, StatusCode, Url};

use super::authorization::{Authorizer, Refused};
use super::credential::Credentials;
use super::limiter::Limiter;
use super::limits::Limits;
use super::payload::Request;
use super::settings::{HostSettings, api_host};
use super::wire::{Outgoing, Redirects, Wire};
use super::{Border, Error, challenge, connect, redirect};

/// How often a request may be answered with 401 before that is the answer.
const MOST_REFUSALS: usize = 3;

/// A registry, or a mirror of one. Clones share connections, tokens and the limit on the rate.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    wire: Wire,
    settings: HostSettings,
    authorizer: Authorizer,
    limiter: Option<Limiter>,
    /// What stands before `/v2/` in every path.
    prefix: String,
    /// The registry that a mirror is asked about.
    namespace: Option<String>,
    mirror: bool,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("name", &self.name()).field("base", &self.0.wire.base.as_str()).finish()
    }
}

impl Host {
    /// A registry by the name people use: `HOST` or `HOST:PORT`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Settings`] where the name is no host or a setting cannot be used; [`Error::File`] where the file of
    /// certificate authorities cannot be read.
    pub fn new(host: &str, settings: HostSettings, credentials: Arc<dyn Credentials>) -> Result<Self, Error> {
        Self::with_limits(host, settings, credentials, Limits::default())
    }

    /// [`Host::new`] with another patience.
    pub(super) fn with_limits(
        host: &str,
        settings: HostSettings,
        credentials: Arc<dyn Credentials>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let scheme = if settings.plain_http { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{}/", api_host(host))).ok();
        let base =
            base.filter(|url| is_bare(url) && url.path() == "/").ok_or_else(|| not_a_host(host, "`HOST:PORT`"))?;
        Self::at(host.to_owned(), base, None, Parts { settings, credentials, limits, mirror: false })
    }

    /// A mirror of `of_host` at `base_url` (`https://mirror.example` or with a path, below which is `/v2/`). It is told
    /// which registry is meant by the query `ns`, as containerd does, unless it is that registry. The scheme is that of
    /// the URL, whatever the settings say.
    ///
    /// # Errors
    /// As [`Host::new`].
    pub fn mirror(
        base_url: &str,
        of_host: &str,
        settings: HostSettings,
        credentials: Arc<dyn Credentials>,
    ) -> Result<Self, Error> {
        let url = Url::parse(base_url).ok().filter(is_bare);
        let url = url.ok_or_else(|| not_a_host(base_url, "`https://HOST:PORT` or `https://HOST:PORT/PATH`"))?;
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let name = format!("{}{port}", url.host_str().unwrap_or_default());
        let namespace = (name != api_host(of_host)).then(|| of_host.to_owned());
        Self::at(name, url, namespace, Parts { settings, credentials, limits: Limits::default(), mirror: true })
    }

    fn at(name: String, mut base: Url, namespace: Option<String>, parts: Parts) -> Result<Self, Error> {
        let Parts { settings, credentials, mut limits, mirror } = parts;
        limits.stall = settings.stall.unwrap_or(limits.stall);
        if settings.bytes_per_second == Some(0) {
            let text = format!("`{name}` may have no bytes in a second; set at least 1, or leave the setting out");
            return Err(Error::Settings(text));
        }
        let path = base.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/v2").unwrap_or(path).to_owned();
        base.set_path("/");
        let border = Border::around(&base, settings.proxy.as_deref(), &settings.leads_to);
        let client = connect::client(&base, &border, &settings, &limits)?;
        let limiter = settings.bytes_per_second.map(|rate| Limiter::new(rate, Instant::now()));
        let wire = Wire { name, base, border, client, limits };
        let authorizer = Authorizer::new(credentials);
        Ok(Self(Arc::new(Inner { wire, settings, authorizer, limiter, prefix, namespace, mirror })))
    }

    /// Whether it is asked in the place of the registry itself.
    pub(super) fn is_mirror(&self) -> bool {
        self.0.mirror
    }

    /// What errors, progress and logins call it.
    pub fn name(&self) -> &str {
        &self.0.wire.name
    }

    /// What it was made with.
    pub fn settings(&self) -> &HostSettings {
        &self.0.settings
    }

    /// The URL of a path that begins with `/v2/` and may have a query. The path is encoded where it must be; a query is
    /// taken as it is.
    pub fn url(&self, path: &str) -> Url {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let mut url = self.0.wire.base.clone();
        url.set_path(&format!("{}{path}", self.0.prefix));
        url.set_query(query);
        if let Some(namespace) = &self.0.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        url
    }

    /// Sends a request and gives the answer, whatever its status, but for these: 401 is answered with credentials;
    /// redirects are followed; 408, 429, 502, 503, 504 and broken connections are tried again for about half a minute
    /// (longer where the registry asks for that). A `PATCH`, and a `PUT` of a stream, is tried again only where
    /// nothing can have come of it.
    ///
    /// A request that was tried again may have had its effect the first time: the caller must take a finished upload
    /// that is gone, or a chunk that is refused with 416, for what it may be.
    ///
    /// The rate of what is sent is not limited here; the payload's stream calls [`Host::throttle`].
    ///
    /// # Errors
    /// All but [`Error::TooLarge`]. 403, 404 and 500 are answers.
    pub async fn send(&self, request: Request<'_>) -> Result<Response, Error> {
        let Inner { wire, authorizer, .. } = &*self.0;
        wire.border
            .check_step(&wire.base, &request.url)
            .map_err(|reason| Error::Redirects { host: wire.name.clone(), reason })?;
        let ours = redirect::same_origin(&request.url, &wire.base);
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
                let reason =
                    format!("{}, where it sends us, wants a login of its own: {summary}", wire.name_of(&place));
                return Err(Error::unauthorized(&wire.name, reason));
            }
            refusals += 1;
            if refusals >= MOST_REFUSALS {
                return Err(Error::unauthorized(&wire.name, format!("it keeps asking for other tokens: {summary}")));
            }
            authorizer.refused(wire, Refused { scope: request.scope, used, began, challenges, summary }).await?;
        }
    }

    /// The next piece of a body; `None` at its end. Waits as the limit on the rate wants it.
    ///
    /// # Errors
    /// [`Error::Stalled`] after half a minute without a byte; [`Error::Unreachable`] where the body breaks off.
    pub async fn next_piece(&self, response: &mut Response) -> Result<Option<Bytes>, Error> {
        let piece = self.0.wire.next_piece(response).await?;
        if let Some(piece) = &piece {
            self.throttle(piece.len()).await;
        }
        Ok(piece)
    }

    /// Returns when `bytes` more bytes may be sent. What is received is counted by [`Host::next_piece`].
    pub async fn throttle(&self, bytes: usize) {
        if let Some(limiter) = &self.0.limiter {
            limiter.take(bytes).await;
        }
    }

    /// The whole body of a small answer.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where it has more than `limit` bytes; those of [`Host::next_piece`].
    pub async fn body(&self, response: Response, limit: usize) -> Result<Bytes, Error> {
        let body = self.0.wire.body(response, limit).await?;
        self.throttle(body.len()).await;
        Ok(body)
    }

    /// An answer that is not what was hoped for, as an error. `what` was asked for, as the error names it: ``blob
    /// `sha256:…` ``. At most 64 KiB of the body are read.
    pub async fn refusal(&self, what: &str, response: Response) -> Error {
        self.0.wire.refusal(what, response).await
    }
}

/// What hosts and mirrors are both made with.
struct Parts {
    settings: HostSettings,
    credentials: Arc<dyn Credentials>,
    limits: Limits,
    mirror: bool,
}

/// Whether a URL has nothing but a scheme for HTTP, a host and a path.
fn is_bare(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.host_str().is_some_and(|host| !host.is_empty())
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
}

fn not_a_host(found: &str, expected: &str) -> Error {
    // It may have a password in it.
    let shown: String = found.rsplit('@').next().unwrap_or_default().chars().take(100).collect();
    Error::Settings(format!("`{shown}` is not a registry: expected {expected}"))
}
