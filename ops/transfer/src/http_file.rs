//! Files on HTTP servers that support range requests. They are the sources of
//! [`RangeReader`](library::RangeReader).
//!
//! This module follows redirects itself, instead of the HTTP library. The token is sent only to the
//! endpoint's own origin, and no redirect may lead to an address nearer to this machine than the
//! endpoint ([`RedirectPolicy`]). Hubs redirect each request to a signed URL of another host, so
//! the target of a redirect is remembered. If the server refuses that URL, it has expired and is
//! requested again.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use library::{FetchRange, RangeSource};
use registry::client::{Pace, RedirectPolicy, cause};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};

/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 5;
/// Maximum number of attempts of a request that fails for a transient reason.
const ATTEMPTS: u32 = 5;
/// Wait after the first failure. It doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait that a server may request.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Timeout for a connection, and for the time between two pieces of data.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server and the credentials for it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: Client,
    redirect_policy: RedirectPolicy,
    origin: String,
    token: Option<String>,
    /// `None` for small documents that a client waits for.
    pace: Option<Pace>,
    first_wait: Duration,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// The failure of a request.
#[derive(Debug)]
enum RequestFailure {
    /// A retry cannot help.
    Final(io::Error),
    /// A retry may help, after the wait that the server requested, if any.
    Passing(io::Error, Option<Duration>),
    /// The server refuses the remembered address.
    Expired(io::Error),
}

impl Endpoint {
    /// The server at `url`. Its token is sent only to this scheme, host and port.
    pub(crate) fn new(url: &str, token: Option<String>) -> io::Result<Self> {
        let parsed = parse(url)?;
        // Without TLS, the network could read the token. On this machine there is no network.
        let local = parsed.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"));
        if token.is_some() && parsed.scheme() != "https" && !local {
            return Err(invalid(format!("`{url}` is not https, so the token is not sent there; use https")));
        }
        Self::with_policy((RedirectPolicy::for_server(&parsed, None, &[]), Client::builder()), origin(&parsed), token)
    }

    /// Requests wait for their turn and for the limits of `pace`.
    pub(crate) fn paced(self, pace: Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// The server of a URL that a client named. It must be on the Internet, or one of the hosts
    /// `allowed`.
    pub(crate) fn of_named_url(url: &str, allowed: &[String]) -> io::Result<Self> {
        let parsed = parse(url)?;
        let is_allowed = parsed.host_str().is_some_and(|host| allowed.iter().any(|own| own.eq_ignore_ascii_case(host)));
        if parsed.scheme() != "https" && !is_allowed {
            return Err(invalid(format!("`{url}` is not https")));
        }
        let policy = RedirectPolicy::for_named_urls(allowed);
        policy.check_step(&parsed, &parsed).map_err(|reason| invalid(format!("the URL is refused: {reason}")))?;
        // A proxy would resolve names, whose addresses are checked here.
        Self::with_policy((policy, Client::builder().no_proxy()), origin(&parsed), None)
    }

    fn with_policy(
        (redirect_policy, client): (RedirectPolicy, reqwest::ClientBuilder),
        origin: String,
        token: Option<String>,
    ) -> io::Result<Self> {
        let client = client
            .dns_resolver(redirect_policy.clone())
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(TIMEOUT)
            .read_timeout(TIMEOUT)
            .user_agent(concat!("lode/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(io::Error::other)?;
        Ok(Self { client, redirect_policy, origin, token, pace: None, first_wait: FIRST_WAIT })
    }

    /// Reads a document of at most `limit` bytes.
    pub(crate) async fn document(&self, url: &str, limit: u64) -> io::Result<Bytes> {
        let start = parse(url)?;
        let attempt = || async {
            let (response, _) = self.follow(&start, None).await?;
            let response = self.accepted(response, url, false)?;
            if response.status() != StatusCode::OK {
                return Err(RequestFailure::Final(invalid(format!("`{url}` answered {}", response.status()))));
            }
            self.body(response, limit, url).await
        };
        self.patiently(attempt).await
    }

    /// A file whose size and identity are known.
    pub(crate) fn file(&self, url: &str, size: u64, identity: Option<String>) -> io::Result<RangeSource> {
        let file = Arc::new(HttpFile {
            endpoint: self.clone(),
            name: url.to_owned(),
            start: parse(url)?,
            size,
            resolved: Mutex::default(),
        });
        let fetch: Arc<FetchRange> = Arc::new(move |range| {
            let file = Arc::clone(&file);
            async move { file.fetch(range).await }.boxed()
        });
        Ok(RangeSource { name: url.to_owned(), size, identity, fetch })
    }

    /// Returns the length of a file in bytes, by a request for its first byte.
    pub(crate) async fn size(&self, url: &str) -> io::Result<u64> {
        let start = parse(url)?;
        let attempt = || async {
            let (response, _) = self.follow(&start, Some(&(0..1))).await?;
            // An empty file has no first byte; the error response contains the length.
            if response.status() == StatusCode::RANGE_NOT_SATISFIABLE && total(&response) == Some(0) {
                return Ok(0);
            }
            let response = self.accepted(response, url, false)?;
            let known = if response.status() == StatusCode::OK { response.content_length() } else { total(&response) };
            known.ok_or_else(|| {
                RequestFailure::Final(invalid(format!("`{url}`: the server does not say how long it is")))
            })
        };
        self.patiently(attempt).await
    }

    /// Sends a request and follows redirects. Also returns the final URL.
    async fn follow(&self, start: &Url, range: Option<&Range<u64>>) -> Result<(Response, Url), RequestFailure> {
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        let mut url = start.clone();
        for _ in 0..=MAX_REDIRECTS {
            // Ranges refer to the plain bytes, not to a compressed form.
            let mut request = self.client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
            }
            if let Some(token) = self.token.as_ref().filter(|_| origin(&url) == self.origin) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            // The text of the error would contain the URL, whose query may be a signature.
            let response = request.send().await.map_err(|error| {
                if let Some(reason) = RedirectPolicy::refusal(&error) {
                    return RequestFailure::Final(refused_connection(&reason));
                }
                let host = url.host_str().unwrap_or_default();
                let reason = format!("`{host}` cannot be reached: {}", cause(&error.without_url()));
                RequestFailure::Passing(io::Error::other(reason), None)
            })?;
            if !is_redirect(response.status()) {
                return Ok((response, url));
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            let next =
                next.ok_or_else(|| RequestFailure::Final(invalid("a redirect has no valid `Location`".to_owned())))?;
            let step = self.redirect_policy.check_step(&url, &next);
            step.map_err(|reason| RequestFailure::Final(refused_connection(&reason)))?;
            url = next;
        }
        Err(RequestFailure::Final(invalid(format!("there were more than {MAX_REDIRECTS} redirects"))))
    }

    /// Returns the response if it is a success, and the reason if not. `resolved` is true for a
    /// remembered address.
    fn accepted(&self, response: Response, url: &str, resolved: bool) -> Result<Response, RequestFailure> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let wait = wait.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT));
        let error = |kind, reason: &str| io::Error::new(kind, format!("`{url}` answered {status}{reason}"));
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if resolved => {
                RequestFailure::Expired(error(io::ErrorKind::PermissionDenied, ""))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let hint = if self.token.is_some() {
                    "; the token may not read it"
                } else {
                    "; it may not exist, or need a token (HF_TOKEN for hubs)"
                };
                RequestFailure::Final(error(io::ErrorKind::PermissionDenied, hint))
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => RequestFailure::Final(error(io::ErrorKind::NotFound, "")),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                RequestFailure::Passing(error(io::ErrorKind::Other, ""), wait)
            }
            status if status.is_server_error() => RequestFailure::Passing(error(io::ErrorKind::Other, ""), wait),
            _ => RequestFailure::Final(error(io::ErrorKind::InvalidData, "")),
        })
    }

    /// Tries several times, with increasing waits.
    async fn patiently<T, F: Future<Output = Result<T, RequestFailure>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> io::Result<T> {
        let mut wait = self.first_wait;
        for left in (0..ATTEMPTS).rev() {
            let (error, asked) = match attempt().await {
                Ok(done) => return Ok(done),
                Err(RequestFailure::Final(error)) => return Err(error),
                Err(RequestFailure::Passing(error, asked)) => (error, asked.unwrap_or(wait)),
                Err(RequestFailure::Expired(error)) => (error, Duration::ZERO),
            };
            if left == 0 {
                return Err(io::Error::new(error.kind(), format!("tried {ATTEMPTS} times: {error}")));
            }
            tracing::debug!(%error, "trying again");
            tokio::time::sleep(asked).await;
            wait *= 2;
        }
        unreachable!("invariant: the last attempt returns")
    }

    /// Reads the body of a response. A body above `limit` is refused before it is in memory.
    async fn body(&self, mut response: Response, limit: u64, name: &str) -> Result<Bytes, RequestFailure> {
        let expected = response.content_length().unwrap_or(0);
        let mut bytes = Vec::with_capacity(expected.min(limit) as usize);
        loop {
            let passing = |e: reqwest::Error| RequestFailure::Passing(io::Error::other(e.without_url()), None);
            let Some(piece) = response.chunk().await.map_err(passing)? else { return Ok(bytes.into()) };
            if (bytes.len() + piece.len()) as u64 > limit {
                return Err(RequestFailure::Final(invalid(format!("`{name}`: more than {limit} bytes came"))));
            }
            if let Some(pace) = &self.pace {
                pace.take(piece.len()).await;
            }
            bytes.extend_from_slice(&piece);
        }
    }

    #[cfg(test)]
    fn impatient(mut self) -> Self {
        self.first_wait = Duration::from_millis(1);
        self
    }
}

/// A file on a server.
struct HttpFile {
    endpoint: Endpoint,
    name: String,
    start: Url,
    size: u64,
    /// The final URL of the last request.
    resolved: Mutex<Option<Url>>,
}

impl HttpFile {
    async fn fetch(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.endpoint.patiently(|| self.attempt(range.clone())).await
    }

    async fn attempt(&self, range: Range<u64>) -> Result<Bytes, RequestFailure> {
        let remembered = self.resolved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The remembered address may be expired or wrong: keep it only if this request succeeds.
        self.remember(None);
        let from = remembered.as_ref().unwrap_or(&self.start);
        let (response, end) = self.endpoint.follow(from, Some(&range)).await?;
        let response = self.endpoint.accepted(response, &self.name, remembered.is_some())?;
        self.check_range(&response, &range)?;
        let bytes = self.endpoint.body(response, range.end - range.start, &self.name).await?;
        if bytes.len() as u64 != range.end - range.start {
            let reason = format!("`{}`: the response was truncated", self.name);
            return Err(RequestFailure::Passing(io::Error::new(io::ErrorKind::UnexpectedEof, reason), None));
        }
        self.remember(Some(end).filter(|end| *end != self.start));
        Ok(bytes)
    }

    fn remember(&self, url: Option<Url>) {
        *self.resolved.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }

    /// Checks that the response has the requested range, of a file of the expected length.
    fn check_range(&self, response: &Response, range: &Range<u64>) -> Result<(), RequestFailure> {
        let name = &self.name;
        let whole = *range == (0..self.size);
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let found = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let expected = format!("bytes {}-{}/{}", range.start, range.end - 1, self.size);
                if found == Some(expected.as_str()) {
                    return Ok(());
                }
                let found = found.unwrap_or("nothing");
                Err(RequestFailure::Final(invalid(format!("`{name}`: expected the range `{expected}`, got `{found}`"))))
            }
            StatusCode::OK if whole && response.content_length().is_none_or(|length| length == self.size) => Ok(()),
            status => Err(RequestFailure::Final(invalid(format!(
                "`{name}`: the server answered {status} to a request for a range; it must serve ranges, download the \
                 file and import it from there"
            )))),
        }
    }
}

/// The length of the whole file, from the response to a range request.
fn total(response: &Response) -> Option<u64> {
    response.headers().get(CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.parse().ok()
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn origin(url: &Url) -> String {
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{}://{}:{port}", url.scheme(), url.host_str().unwrap_or_default())
}

fn parse(url: &str) -> io::Result<Url> {
    let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    parsed.ok_or_else(|| invalid(format!("`{url}` is not an address, expected https://HOST/…")))
}

fn refused_connection(reason: &str) -> io::Error {
    invalid(format!("a connection was refused: {reason}"))
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests;
