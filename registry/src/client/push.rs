//! Pushing: blobs that the registry lacks, then the manifest.
//!
//! ```text
//! HEAD ─ there ──────────────────────────────────────▶ done
//!   └─ not there ─▶ mount from a sibling ─ 201 ──────▶ done
//!                        └─ 202 ─▶ one PUT │ chunks ─▶ done
//!                                     └─ breaks off: ask how far it is, go on from there
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use content::{Descriptor, Digest, Provider};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RANGE};
use reqwest::{Method, Response, StatusCode, Url};
use tokio::sync::OnceCell;

use super::fetch::Counter;
use super::remote::protocol;
use super::{Action, Error, Host, Payload, Request, Scope};

/// Blobs below this size are sent with the request that begins their upload, in bytes.
const SMALL: u64 = 1 << 20;
/// How much is read of a blob at a time, in bytes.
const WINDOW: u64 = 1 << 20;
/// Time before an upload is taken up again; twice as long each time that nothing came of it.
const WAIT: Duration = Duration::from_millis(200);
/// How often an upload is taken up again after it broke off without progress.
const ATTEMPTS: u32 = 5;

/// Why a push did not end well.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The registry's or the connection's fault.
    #[error(transparent)]
    Registry(#[from] Error),
    /// A blob could not be read here.
    #[error(transparent)]
    Store(#[from] content::Error),
    /// The registry would refuse it. Nothing was sent.
    #[error("`{host}` takes {limit} at most, this model has {actual}; push it to another registry")]
    TooMuch {
        /// The registry.
        host: String,
        /// What it takes.
        limit: String,
        /// What there is.
        actual: String,
    },
}

/// How a blob came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It was there.
    Present,
    /// It was in another repository of the registry.
    Mounted,
    /// It was sent.
    Sent,
}

/// Pushes to one repository. Clones share what was learnt of the registry.
#[derive(Clone, Debug)]
pub struct Pusher<S> {
    source: S,
    host: Host,
    repository: Arc<str>,
    scope: Arc<Scope>,
    /// Whether the registry takes a blob with the request that begins its upload: learnt from the first one, which all
    /// others wait for. A registry that does not has read it for nothing.
    takes_post: Arc<OnceCell<bool>>,
}

impl<S: Provider + Clone + 'static> Pusher<S> {
    /// Sends blobs of `source` to `repository` at `host`.
    pub fn new(source: S, host: Host, repository: &str) -> Self {
        let scope = Scope { repository: repository.to_owned(), actions: Action::Push, mount_from: None };
        Self { source, host, repository: repository.into(), scope: Arc::new(scope), takes_post: Arc::default() }
    }

    /// Refuses what the registry is known not to take: before anything is sent.
    pub fn check_limits(&self, manifest: &[u8], layers: usize) -> Result<(), PushError> {
        let host = || self.host.name().to_owned();
        if manifest.len() > manifests::MAX_MANIFEST {
            let limit = format!("manifests of {} bytes", manifests::MAX_MANIFEST);
            return Err(PushError::TooMuch { host: host(), limit, actual: format!("one of {}", manifest.len()) });
        }
        match self.host.settings().max_layers {
            Some(most) if layers > most => Err(PushError::TooMuch {
                host: host(),
                limit: format!("{most} layers (setting `max_layers`)"),
                actual: format!("{layers}"),
            }),
            _ => Ok(()),
        }
    }

    /// Whether the repository has the blob.
    pub async fn has(&self, digest: &Digest) -> Result<bool, Error> {
        let path = format!("/v2/{}/blobs/{digest}", self.repository);
        let response = self.send(Method::HEAD, self.host.url(&path), HeaderMap::new(), Payload::None).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.host.refusal(&self.what(digest), response).await),
        }
    }

    /// Makes sure that the repository has the blob; `siblings` are repositories of the same registry that have it.
    pub async fn push(
        &self,
        blob: &Descriptor,
        siblings: &[String],
        counter: &dyn Counter,
    ) -> Result<Pushed, PushError> {
        if self.has(&blob.digest).await? {
            counter.add(blob.size);
            return Ok(Pushed::Present);
        }
        let mut upload = None;
        if let Some(from) = siblings.first() {
            match self.mount(&blob.digest, from).await {
                Ok(None) => {
                    counter.add(blob.size);
                    return Ok(Pushed::Mounted);
                }
                Ok(Some(url)) => upload = Some(url),
                Err(error) if error.is_transient() => return Err(error.into()),
                // It was a guess; we may not even be allowed to look there.
                Err(error) => tracing::debug!(from, "not mounted: {error}"),
            }
        }
        if blob.size < SMALL {
            if let Err(error) = self.send_small(blob, upload).await {
                // It may have had its effect although no answer came; else once more, from the beginning.
                tracing::debug!(digest = %blob.digest, "sending a small blob again: {error}");
                if !self.has(&blob.digest).await? {
                    let upload = self.begin(&blob.digest).await?;
                    self.send_small(blob, Some(upload)).await?;
                }
            }
            counter.add(blob.size);
        } else {
            self.send_large(blob, upload, counter).await?;
        }
        Ok(Pushed::Sent)
    }

    /// Mounts; gives the URL of the upload that the registry offers instead where it does not.
    async fn mount(&self, digest: &Digest, from: &str) -> Result<Option<Url>, Error> {
        let url = self.host.url(&format!("/v2/{}/blobs/uploads/?mount={digest}&from={from}", self.repository));
        let scope = Scope { mount_from: Some(from.to_owned()), ..(*self.scope).clone() };
        let request =
            Request { method: Method::POST, url, headers: HeaderMap::new(), scope: &scope, payload: Payload::None };
        let response = self.host.send(request).await?;
        match response.status() {
            StatusCode::CREATED => Ok(None),
            StatusCode::ACCEPTED => self.location(&response).map(Some),
            _ => Err(self.host.refusal(&self.what(digest), response).await),
        }
    }

    async fn send_small(&self, blob: &Descriptor, upload: Option<Url>) -> Result<(), PushError> {
        let bytes = self.source.read(&blob.digest, 0..blob.size).await?;
        self.host.throttle(bytes.len()).await;
        let mut upload = upload;
        // Ollama's way to ask for an upload is a digest without a body, so that zero bytes are sent the long way.
        if upload.is_none() && !bytes.is_empty() {
            let mut first = None;
            let learn = async || {
                let posted = self.post(&blob.digest, bytes.clone()).await?;
                let takes = posted.is_none();
                first = Some(posted);
                Ok::<_, Error>(takes)
            };
            let takes = *self.takes_post.get_or_try_init(learn).await?;
            let posted = match first {
                None if takes => Some(self.post(&blob.digest, bytes.clone()).await?),
                other => other,
            };
            match posted {
                Some(None) => return Ok(()),
                Some(url) => upload = url,
                None => {}
            }
        }
        let url = match upload {
            Some(url) => url,
            None => self.begin(&blob.digest).await?,
        };
        let response = self.send(Method::PUT, with_digest(url, &blob.digest), octets(), Payload::Bytes(bytes)).await?;
        self.created(&blob.digest, response).await
    }

    /// Sends a blob with the request that begins its upload; gives the upload where the registry wants it sent there.
    async fn post(&self, digest: &Digest, bytes: Bytes) -> Result<Option<Url>, Error> {
        let path = format!("/v2/{}/blobs/uploads/?digest={digest}", self.repository);
        let response = self.send(Method::POST, self.host.url(&path), octets(), Payload::Bytes(bytes)).await?;
        match response.status() {
            StatusCode::CREATED => Ok(None),
            StatusCode::ACCEPTED => self.location(&response).map(Some),
            // It knows no such request.
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                self.begin(digest).await.map(Some)
            }
            _ => Err(self.host.refusal(&self.what(digest), response).await),
        }
    }

    async fn send_large(&self, blob: &Descriptor, upload: Option<Url>, counter: &dyn Counter) -> Result<(), PushError> {
        let mut upload = match upload {
            Some(url) => url,
            None => self.begin(&blob.digest).await?,
        };
        let (mut offset, mut idle) = (0, 0);
        loop {
            let before = offset;
            let error = match self.go_on(blob, &mut upload, &mut offset, counter).await {
                Ok(()) => {
                    counter.add(blob.size - offset);
                    return Ok(());
                }
                Err(PushError::Registry(error)) if may_go_on(&error) => error,
                Err(other) => {
                    counter.remove(offset);
                    return Err(other);
                }
            };
            // It may have had its effect although no answer came.
            if self.has(&blob.digest).await? {
                counter.add(blob.size - offset);
                return Ok(());
            }
            counter.remove(offset);
            (upload, offset) = self.status(blob, upload).await?;
            counter.add(offset);
            idle = if offset > before { 0 } else { idle + 1 };
            tokio::time::sleep(WAIT * (1 << idle)).await;
            if idle >= ATTEMPTS {
                counter.remove(offset);
                return Err(error.into());
            }
            tracing::debug!(host = self.host.name(), digest = %blob.digest, offset, "going on: {error}");
        }
    }

    /// Sends what is left: in one PUT, or in chunks where the registry wants them or an upload is taken up again.
    async fn go_on(
        &self,
        blob: &Descriptor,
        upload: &mut Url,
        offset: &mut u64,
        counter: &dyn Counter,
    ) -> Result<(), PushError> {
        let chunk = self.host.settings().chunk.unwrap_or(u64::MAX).max(1);
        if *offset == 0 && blob.size <= chunk {
            let url = with_digest(upload.clone(), &blob.digest);
            let response = self.send(Method::PUT, url, octets(), self.payload(blob, 0..blob.size)).await?;
            return self.created(&blob.digest, response).await;
        }
        while *offset < blob.size {
            let end = blob.size.min(offset.saturating_add(chunk));
            let mut headers = octets();
            headers.insert(CONTENT_RANGE, header(&format!("{offset}-{}", end - 1)));
            let payload = self.payload(blob, *offset..end);
            let response = self.send(Method::PATCH, upload.clone(), headers, payload).await?;
            if response.status() != StatusCode::ACCEPTED {
                return Err(self.host.refusal(&self.what(&blob.digest), response).await.into());
            }
            *upload = self.location(&response)?;
            counter.add(end - *offset);
            *offset = end;
        }
        let response =
            self.send(Method::PUT, with_digest(upload.clone(), &blob.digest), octets(), Payload::None).await?;
        self.created(&blob.digest, response).await
    }

    /// Begins an upload.
    async fn begin(&self, digest: &Digest) -> Result<Url, Error> {
        let url = self.host.url(&format!("/v2/{}/blobs/uploads/", self.repository));
        let response = self.send(Method::POST, url, HeaderMap::new(), Payload::None).await?;
        match response.status() {
            StatusCode::ACCEPTED => self.location(&response),
            _ => Err(self.host.refusal(&self.what(digest), response).await),
        }
    }

    /// How far an upload is; a new one where the registry has forgotten it.
    async fn status(&self, blob: &Descriptor, upload: Url) -> Result<(Url, u64), Error> {
        let response = self.send(Method::GET, upload.clone(), HeaderMap::new(), Payload::None).await?;
        if response.status() != StatusCode::NO_CONTENT {
            return Ok((self.begin(&blob.digest).await?, 0));
        }
        let range = response.headers().get(RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let last = range.trim_start_matches("bytes=").strip_prefix("0-").and_then(|last| last.parse::<u64>().ok());
        match last {
            // All of it or more is there, and the commit failed: it is not what we sent.
            Some(last) if last >= blob.size => Ok((self.begin(&blob.digest).await?, 0)),
            // `0-0` is said of one byte and of none; nobody sends one byte.
            Some(last) if last > 0 => Ok((self.location(&response).unwrap_or(upload), last + 1)),
            _ => Ok((self.location(&response).unwrap_or(upload), 0)),
        }
    }

    /// Makes `reference` of the repository name the manifest. All its blobs are there.
    pub async fn put_manifest(&self, reference: &str, media_type: &str, raw: Bytes) -> Result<(), PushError> {
        let url = self.host.url(&format!("/v2/{}/manifests/{reference}", self.repository));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, header(media_type));
        let response = self.send(Method::PUT, url, headers, Payload::Bytes(raw)).await?;
        if response.status().is_success() {
            return Ok(());
        }
        let what = format!("manifest `{reference}` of `{}`", self.repository);
        Err(self.host.refusal(&what, response).await.into())
    }

    async fn send(&self, method: Method, url: Url, headers: HeaderMap, payload: Payload) -> Result<Response, Error> {
        self.host.send(Request { method, url, headers, scope: &self.scope, payload }).await
    }

    async fn created(&self, digest: &Digest, response: Response) -> Result<(), PushError> {
        match response.status() {
            StatusCode::CREATED | StatusCode::NO_CONTENT | StatusCode::OK => Ok(()),
            _ => Err(self.host.refusal(&self.what(digest), response).await.into()),
        }
    }

    /// Where to go on, as an answer says.
    fn location(&self, response: &Response) -> Result<Url, Error> {
        let text = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let url = text.and_then(|text| response.url().join(text).ok());
        url.ok_or_else(|| protocol(&self.host, "it began an upload and did not say where (`Location`)".to_owned()))
    }

    fn payload(&self, blob: &Descriptor, range: std::ops::Range<u64>) -> Payload {
        let (source, host, digest) = (self.source.clone(), self.host.clone(), blob.digest);
        let length = range.end - range.start;
        let make = move || -> BoxStream<'static, Result<Bytes, std::io::Error>> {
            let (source, host, range) = (source.clone(), host.clone(), range.clone());
            let windows = range.clone().step_by(WINDOW as usize);
            let read = move |start: u64| {
                let (source, host, end) = (source.clone(), host.clone(), range.end.min(start + WINDOW));
                async move {
                    let bytes = source.read(&digest, start..end).await.map_err(std::io::Error::other)?;
                    host.throttle(bytes.len()).await;
                    Ok(bytes)
                }
            };
            futures_util::stream::iter(windows).then(read).boxed()
        };
        Payload::Stream { length, make: Arc::new(make) }
    }

    fn what(&self, digest: &Digest) -> String {
        format!("blob `{digest}` of `{}`", self.repository)
    }
}

/// Whether an upload that failed so may be gone on with, after a look at how far it is: also where the answer to what we
/// sent was lost and the upload has moved on without us.
fn may_go_on(error: &Error) -> bool {
    error.is_transient()
        || matches!(error, Error::NotFound { .. })
        || matches!(error, Error::Refused { status, .. } if *status == StatusCode::RANGE_NOT_SATISFIABLE)
}

fn octets() -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))])
}

/// The URL of an upload, which may have a query, with the digest that ends it.
fn with_digest(mut url: Url, digest: &Digest) -> Url {
    url.query_pairs_mut().append_pair("digest", &digest.to_string());
    url
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
