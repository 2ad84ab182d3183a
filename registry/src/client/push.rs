//! Pushes blobs that the registry lacks, then the manifest.
//!
//! ```text
//! HEAD ─ exists ────────────────────────────────────▶ done
//!   └─ missing ─▶ mount from another repository ─ 201 ▶ done
//!                      └─ 202 ─▶ one PUT │ chunks ────▶ done
//!                                   └─ breaks off: query the offset, resume there
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use content::operation::{Classified, ErrorClass, RemoteClass};
use content::{Descriptor, Digest, MediaType, Provider};
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
/// Bytes of a blob that are read at a time.
const WINDOW: u64 = 1 << 20;
/// Wait before an upload is resumed. It doubles after each attempt without progress.
const WAIT: Duration = Duration::from_millis(200);
/// Maximum number of consecutive attempts without progress.
const ATTEMPTS: u32 = 5;

/// Reasons why a push failed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The registry or the connection failed.
    #[error(transparent)]
    Registry(#[from] Error),
    /// A local blob could not be read.
    #[error(transparent)]
    Store(#[from] content::Error),
    /// The registry would refuse the model. Nothing was sent.
    #[error("`{host}` accepts at most {limit}, this model has {actual}; push it to another registry")]
    TooMuch {
        /// The registry.
        host: String,
        /// The limit of the registry.
        limit: String,
        /// The actual number.
        actual: String,
    },
}

impl Classified for PushError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Registry(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::TooMuch { .. } => ErrorClass::Remote(RemoteClass::Refused),
        }
    }
}

/// How a blob got into the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The repository had it already.
    Present,
    /// It was mounted from another repository of the registry.
    Mounted,
    /// It was sent.
    Sent,
}

/// Pushes to one repository. Clones share facts about the registry.
#[derive(Clone, Debug)]
pub struct Pusher<S> {
    source: S,
    host: Host,
    repository: Arc<str>,
    scope: Arc<Scope>,
    /// Whether the registry accepts a blob with the request that begins its upload. The first small
    /// blob finds out, and the other blobs wait for it. A registry that does not accept it reads
    /// the blob in vain.
    takes_post: Arc<OnceCell<bool>>,
}

impl<S: Provider + Clone + 'static> Pusher<S> {
    /// Creates a pusher of blobs from `source` to `repository` at `host`.
    pub fn new(source: S, host: Host, repository: &str) -> Self {
        let scope = Scope { repository: repository.to_owned(), actions: Action::Push, mount_from: None };
        Self { source, host, repository: repository.into(), scope: Arc::new(scope), takes_post: Arc::default() }
    }

    /// Checks the known limits of the registry before anything is sent.
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

    /// Pushes the blob unless the repository has it; `siblings` are repositories of the same
    /// registry that have it.
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
                // The sibling was a guess, and we may not be allowed to read it.
                Err(error) => tracing::debug!(from, "not mounted: {error}"),
            }
        }
        if blob.size < SMALL {
            if let Err(error) = self.send_small(blob, upload).await {
                // The upload may have succeeded without a response; if not, it is repeated from the
                // beginning.
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

    /// Mounts a blob. If the registry does not mount it, returns the URL of the upload that it
    /// offers instead.
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
        let bytes = self.source.read(blob, 0..blob.size).await?;
        self.host.throttle(bytes.len()).await;
        let mut upload = upload;
        // Ollama requests an upload by a `POST` with a digest and no body. So an empty blob is sent
        // by `PUT`.
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

    /// Sends a blob with the request that begins its upload. Returns the upload's URL if the
    /// registry expects the blob there.
    async fn post(&self, digest: &Digest, bytes: Bytes) -> Result<Option<Url>, Error> {
        let path = format!("/v2/{}/blobs/uploads/?digest={digest}", self.repository);
        let response = self.send(Method::POST, self.host.url(&path), octets(), Payload::Bytes(bytes)).await?;
        match response.status() {
            StatusCode::CREATED => Ok(None),
            StatusCode::ACCEPTED => self.location(&response).map(Some),
            // The registry does not support such a request.
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
            // The upload may have succeeded without a response.
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

    /// Sends the remaining bytes: in one `PUT`, or in chunks if the registry needs them or the
    /// upload is resumed.
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

    /// Begins an upload and returns its URL.
    async fn begin(&self, digest: &Digest) -> Result<Url, Error> {
        let url = self.host.url(&format!("/v2/{}/blobs/uploads/", self.repository));
        let response = self.send(Method::POST, url, HeaderMap::new(), Payload::None).await?;
        match response.status() {
            StatusCode::ACCEPTED => self.location(&response),
            _ => Err(self.host.refusal(&self.what(digest), response).await),
        }
    }

    /// The offset of an upload; a new upload if the registry has forgotten this one.
    async fn status(&self, blob: &Descriptor, upload: Url) -> Result<(Url, u64), Error> {
        let response = self.send(Method::GET, upload.clone(), HeaderMap::new(), Payload::None).await?;
        if response.status() != StatusCode::NO_CONTENT {
            return Ok((self.begin(&blob.digest).await?, 0));
        }
        let range = response.headers().get(RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let last = range.trim_start_matches("bytes=").strip_prefix("0-").and_then(|last| last.parse::<u64>().ok());
        match last {
            // The registry has all bytes or more, and the commit failed: they are not our bytes.
            Some(last) if last >= blob.size => Ok((self.begin(&blob.digest).await?, 0)),
            // `0-0` stands for one byte and for none; no client sends a single byte.
            Some(last) if last > 0 => Ok((self.location(&response).unwrap_or(upload), last + 1)),
            _ => Ok((self.location(&response).unwrap_or(upload), 0)),
        }
    }

    /// Points `reference` of the repository to the manifest. All its blobs must be there.
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

    /// The URL at which to continue, from the `Location` header.
    fn location(&self, response: &Response) -> Result<Url, Error> {
        let text = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let url = text.and_then(|text| response.url().join(text).ok());
        url.ok_or_else(|| protocol(&self.host, "the response to a new upload has no `Location` header".to_owned()))
    }

    fn payload(&self, blob: &Descriptor, range: std::ops::Range<u64>) -> Payload {
        let (source, host, blob) = (self.source.clone(), self.host.clone(), blob.clone());
        let length = range.end - range.start;
        let make = move || -> BoxStream<'static, Result<Bytes, std::io::Error>> {
            let (source, host, blob, range) = (source.clone(), host.clone(), blob.clone(), range.clone());
            let windows = range.clone().step_by(WINDOW as usize);
            let read = move |start: u64| {
                let (source, host, blob, end) =
                    (source.clone(), host.clone(), blob.clone(), range.end.min(start + WINDOW));
                async move {
                    let bytes = source.read(&blob, start..end).await.map_err(std::io::Error::other)?;
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

/// Whether an upload may be resumed after this error, at the offset that the registry reports. This
/// includes errors after a lost response, when the upload has advanced without our knowledge.
fn may_go_on(error: &Error) -> bool {
    error.is_transient()
        || matches!(error, Error::NotFound { .. })
        || matches!(error, Error::Refused { status, .. } if *status == StatusCode::RANGE_NOT_SATISFIABLE)
}

fn octets() -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, header(MediaType::OCTET_STREAM.as_str()))])
}

/// The URL that completes an upload: its own URL, which may have a query, with the digest added.
fn with_digest(mut url: Url, digest: &Digest) -> Url {
    url.query_pairs_mut().append_pair("digest", &digest.to_string());
    url
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
