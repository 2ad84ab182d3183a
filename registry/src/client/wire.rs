//! One exchange with a registry: sends a request, with retries, and returns the response. The
//! caller provides the authorization.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, Url};

use super::error::{Error, tls_failure};
use super::limits::HostLimits;
use super::payload::{self, Payload, SendProgress};
use super::retry::{self, Again, Backoff};
use super::{RedirectPolicy, redirect};
use crate::code::ErrorBody;

/// Maximum number of bytes that are read of the body of a refusal.
const REFUSAL: usize = 64 * 1024;

/// The connections to a registry. There is no `Debug`, because they may contain a proxy's password.
pub(super) struct Wire {
    /// The name of the registry for display.
    pub(super) name: String,
    /// The base URL of the registry.
    pub(super) base: Url,
    pub(super) redirect_policy: RedirectPolicy,
    pub(super) client: Client,
    pub(super) limits: HostLimits,
}

/// A request to send.
pub(super) struct Outgoing<'a> {
    pub(super) method: &'a Method,
    pub(super) url: &'a Url,
    pub(super) headers: &'a HeaderMap,
    pub(super) payload: &'a Payload,
    /// Sent only to the origin of `url`.
    pub(super) authorization: Option<&'a HeaderValue>,
    pub(super) redirects: Redirects,
}

/// Whether redirects are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirects {
    Follow,
    /// For bodies that contain secrets, which must not go to another address.
    Refuse,
}

/// An attempt without a response.
struct SendFailure {
    error: Error,
    again: Again,
}

impl Wire {
    /// Retries until a response does not mean "try again later", or until the limits are reached.
    pub(super) async fn exchange(&self, outgoing: &Outgoing<'_>) -> Result<Response, Error> {
        let mut backoff = Backoff::new(&self.limits, Instant::now());
        loop {
            let (again, asked, attempt) = match self.attempt(outgoing).await {
                Ok(response) => match retry::not_now(response.status()) {
                    None => return Ok(response),
                    Some(again) => (again, retry::retry_after(response.headers()), Ok(response)),
                },
                Err(SendFailure { error, again }) => (again, None, Err(error)),
            };
            let may = match again {
                Again::Never => false,
                Again::Harmless => true,
                Again::IfRepeatable => payload::is_repeatable(outgoing.method, outgoing.payload),
            };
            let wait = may.then(|| backoff.next(Instant::now(), asked, rand::random())).flatten();
            let Some(wait) = wait else {
                let what = format!("{} {}", outgoing.method, outgoing.url.path());
                return Err(match attempt {
                    Ok(response) => self.refusal(&what, response).await,
                    Err(error) => error,
                });
            };
            let reason = match attempt {
                Ok(response) => response.status().to_string(),
                Err(error) => error.to_string(),
            };
            tracing::debug!(host = self.name_of(outgoing.url), reason, wait = ?wait, "trying again");
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends the request once and follows redirects.
    async fn attempt(&self, outgoing: &Outgoing<'_>) -> Result<Response, SendFailure> {
        let (mut url, mut authorization) = (outgoing.url.clone(), outgoing.authorization);
        let refused = |url: &Url, reason: String| SendFailure {
            error: Error::Redirects { host: self.name_of(url), reason },
            again: Again::Never,
        };
        for _ in 0..=redirect::MOST {
            let response = self.once(outgoing, &url, authorization).await?;
            if outgoing.redirects == Redirects::Refuse {
                return Ok(response);
            }
            let next = redirect::target(&self.redirect_policy, outgoing.method, &response)
                .map_err(|reason| refused(&url, reason))?;
            let Some(next) = next else { return Ok(response) };
            if !redirect::same_origin(&url, &next) {
                authorization = None;
            }
            url = next;
        }
        Err(refused(&url, format!("more than {} consecutive redirects", redirect::MOST)))
    }

    /// Sends the request to one URL and waits for the head of the response.
    async fn once(
        &self,
        outgoing: &Outgoing<'_>,
        url: &Url,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, SendFailure> {
        let progress = SendProgress::new();
        let request = request(outgoing, url, authorization, &progress);
        let mut answer = pin!(self.client.execute(request));
        loop {
            let deadline = progress.deadline(outgoing.method, &self.limits);
            match tokio::time::timeout_at(deadline.into(), &mut answer).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => return Err(self.failure(url, error, &progress)),
                Err(_) if progress.deadline(outgoing.method, &self.limits) > Instant::now() => {}
                Err(_) => {
                    let error = Error::Stalled { host: self.name_of(url) };
                    return Err(SendFailure { error, again: Again::IfRepeatable });
                }
            }
        }
    }

    fn failure(&self, url: &Url, error: reqwest::Error, progress: &SendProgress) -> SendFailure {
        let host = self.name_of(url);
        if let Some(source) = progress.failure() {
            return SendFailure { error: Error::Payload { host, source }, again: Again::Never };
        }
        if let Some(reason) = RedirectPolicy::refusal(&error) {
            return SendFailure { error: Error::Redirects { host, reason }, again: Again::Never };
        }
        let again = if error.is_builder() || tls_failure(&error).is_some() {
            Again::Never
        } else if error.is_connect() {
            Again::Harmless
        } else {
            Again::IfRepeatable
        };
        SendFailure { error: Error::unreachable(host, error), again }
    }

    /// The next piece of a body.
    pub(super) async fn next_piece(&self, response: &mut Response) -> Result<Option<Bytes>, Error> {
        match tokio::time::timeout(self.limits.stall, response.chunk()).await {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(Error::unreachable(self.name_of(response.url()), error)),
            Err(_) => Err(Error::Stalled { host: self.name_of(response.url()) }),
        }
    }

    /// Reads the whole body; fails above `limit` bytes.
    pub(super) async fn body(&self, mut response: Response, limit: usize) -> Result<Bytes, Error> {
        let too_large = |response: &Response| Error::TooLarge { host: self.name_of(response.url()), limit };
        if response.content_length().is_some_and(|length| length > limit as u64) {
            return Err(too_large(&response));
        }
        let mut body = BytesMut::new();
        while let Some(piece) = self.next_piece(&mut response).await? {
            if body.len() + piece.len() > limit {
                return Err(too_large(&response));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }

    /// The message of a refusal's body for display. If the body is long, slow or breaks off, only
    /// its beginning is used.
    pub(super) async fn summary(&self, mut response: Response) -> String {
        let mut body = BytesMut::new();
        let reading = async {
            while body.len() < REFUSAL
                && let Ok(Some(piece)) = self.next_piece(&mut response).await
            {
                let room = REFUSAL - body.len();
                body.extend_from_slice(&piece[..piece.len().min(room)]);
            }
        };
        if tokio::time::timeout(self.limits.stall, reading).await.is_err() {
            tracing::debug!(host = self.name, "the text of a refusal takes too long");
        }
        let text = ErrorBody::summary(&body);
        // Text from a registry must not contain control characters for the terminal.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.is_empty() { "no reason given".to_owned() } else { text }
    }

    /// Turns an unexpected response into an error.
    pub(super) async fn refusal(&self, what: &str, response: Response) -> Error {
        let (status, host) = (response.status(), self.name_of(response.url()));
        let message = self.summary(response).await;
        let what = what.to_owned();
        match status {
            StatusCode::UNAUTHORIZED => Error::unauthorized(&self.name, message),
            StatusCode::FORBIDDEN => Error::Denied { host, what, message },
            StatusCode::NOT_FOUND => Error::NotFound { what: format!("{what} at `{host}` ({message})") },
            StatusCode::TOO_MANY_REQUESTS => Error::TooManyRequests { host },
            _ => Error::Refused { host, status, what, message },
        }
    }

    /// The name of the server at `url`: the registry's name, or the host of a server that it
    /// redirected to.
    pub(super) fn name_of(&self, url: &Url) -> String {
        if redirect::same_origin(url, &self.base) {
            return self.name.clone();
        }
        let host = url.host_str().unwrap_or("?");
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{host}{port} (for {})", self.name)
    }
}

fn request(
    outgoing: &Outgoing<'_>,
    url: &Url,
    authorization: Option<&HeaderValue>,
    progress: &Arc<SendProgress>,
) -> reqwest::Request {
    let mut request = reqwest::Request::new(outgoing.method.clone(), url.clone());
    let headers = request.headers_mut();
    headers.clone_from(outgoing.headers);
    headers.remove(AUTHORIZATION);
    if let Some(value) = authorization {
        headers.insert(AUTHORIZATION, value.clone());
    }
    // Registries refuse requests that may have a body and do not state its length.
    let may_have_body = matches!(*outgoing.method, Method::POST | Method::PUT | Method::PATCH);
    if may_have_body || outgoing.payload.length() > 0 {
        headers.insert(CONTENT_LENGTH, outgoing.payload.length().into());
    }
    *request.body_mut() = outgoing.payload.body(progress);
    request
}
