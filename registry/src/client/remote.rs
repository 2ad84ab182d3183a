//! A repository to pull from: at a registry and its mirrors.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use content::{Algorithm, Descriptor, Digest, Hasher, Provider};
use reqwest::header::{ACCEPT, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode};

use super::{Action, Error, Host, Payload, Request, Scope};

/// The supported manifest types. Some registries respond only if their type is listed.
const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// The header with the digest of a manifest.
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// A repository at one or more hosts.
#[derive(Clone, Debug)]
pub struct Remote {
    sources: Arc<[Host]>,
    repository: Arc<str>,
    scope: Arc<Scope>,
    /// Whether another server copies what it gets.
    is_for_copies: bool,
}

/// The beginning of a response with bytes of a blob.
#[derive(Debug)]
pub(super) struct BlobResponse {
    pub(super) response: Response,
    /// The offset of the first byte: 0 if the registry ignores ranges.
    pub(super) start: u64,
}

impl Remote {
    /// Tries `sources` in their order; there must be at least one. A [`Fetcher`](super::Fetcher)
    /// prefers the fastest.
    pub fn new(sources: Vec<Host>, repository: &str) -> Self {
        let scope = Scope { repository: repository.to_owned(), actions: Action::Pull, mount_from: None };
        Self { sources: sources.into(), repository: repository.into(), scope: Arc::new(scope), is_for_copies: false }
    }

    /// [`Remote::new`] for a server that copies content because its client asked. Two such servers
    /// that are each other's source recognize the requests.
    pub fn for_copies(sources: Vec<Host>, repository: &str) -> Self {
        Self { is_for_copies: true, ..Self::new(sources, repository) }
    }

    /// The same repository without peers, for readers that do not verify what they read.
    #[must_use]
    pub fn without_peers(&self) -> Self {
        let sources = self.sources.iter().filter(|host| host.knows_tags()).cloned().collect();
        Self { sources, ..self.clone() }
    }

    /// The hosts in the order in which they are tried.
    pub fn sources(&self) -> &[Host] {
        &self.sources
    }

    /// The name of the repository.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Fetches the manifest that a tag or digest names, from the first source that has it.
    ///
    /// # Errors
    /// The error of the last source, which is the registry itself.
    pub async fn manifest(&self, reference: &str) -> Result<(Digest, Bytes), Error> {
        let mut failure = None;
        let is_digest = reference.parse::<Digest>().is_ok();
        for host in self.sources.iter().filter(|host| is_digest || host.knows_tags()) {
            match self.manifest_of(host, reference).await {
                Ok(found) => return Ok(found),
                Err(error) => {
                    tracing::debug!(host = host.name(), "no manifest from this source: {error}");
                    failure = Some(error);
                }
            }
        }
        Err(failure.unwrap_or_else(|| self.no_source()))
    }

    /// The digest of the manifest that a tag names, without the manifest. Registries with limits on
    /// pulls do not count these requests. `None` if the first source that has the tag does not
    /// announce the digest.
    ///
    /// # Errors
    /// The error of the last source, which is the registry itself.
    pub async fn digest(&self, tag: &str) -> Result<Option<Digest>, Error> {
        let mut failure = None;
        for host in self.sources.iter().filter(|host| host.knows_tags()) {
            match self.request_manifest(host, Method::HEAD, tag).await {
                Ok(response) => {
                    let announced = response.headers().get(CONTENT_DIGEST).and_then(|value| value.to_str().ok());
                    return Ok(announced.and_then(|text| text.parse().ok()));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| self.no_source()))
    }

    async fn request_manifest(&self, host: &Host, method: Method, reference: &str) -> Result<Response, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(MANIFEST_TYPES));
        self.mark(host, &mut headers);
        let url = host.url(&format!("/v2/{}/manifests/{reference}", self.repository));
        let request = Request { method, url, headers, scope: &self.scope, payload: Payload::None };
        let response = host.send(request).await?;
        if response.status() != StatusCode::OK {
            return Err(host.refusal(&self.manifest_text(reference), response).await);
        }
        Ok(response)
    }

    fn manifest_text(&self, reference: &str) -> String {
        format!("manifest `{reference}` of `{}`", self.repository)
    }

    async fn manifest_of(&self, host: &Host, reference: &str) -> Result<(Digest, Bytes), Error> {
        let response = self.request_manifest(host, Method::GET, reference).await?;
        let what = self.manifest_text(reference);
        let raw = host.body(response, manifests::MAX_MANIFEST).await?;
        let wanted = reference.parse::<Digest>().ok();
        let mut hasher = Hasher::new(wanted.map_or(Algorithm::Sha256, |digest| digest.algorithm()));
        hasher.update(&raw);
        let digest = hasher.finish();
        match wanted.filter(|wanted| *wanted != digest) {
            Some(_) => Err(protocol(host, format!("it sent {what} with the digest `{digest}`"))),
            None => Ok((digest, raw)),
        }
    }

    /// Requests the bytes of a blob in `range`. Without a range request if it is the whole blob.
    pub(super) async fn blob(&self, host: &Host, blob: &Descriptor, range: Range<u64>) -> Result<BlobResponse, Error> {
        let mut headers = HeaderMap::new();
        self.mark(host, &mut headers);
        let whole = range == (0..blob.size);
        if !whole {
            let text = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            headers.insert(RANGE, HeaderValue::try_from(text).expect("invariant: digits are a header's value"));
        }
        let url = host.url(&format!("/v2/{}/blobs/{}", self.repository, blob.digest));
        let request = Request { method: Method::GET, url, headers, scope: &self.scope, payload: Payload::None };
        let response = host.send(request).await?;
        let what = || format!("blob `{}` of `{}`", blob.digest, self.repository);
        match response.status() {
            StatusCode::OK => {
                check_length(host, &response, blob.size).map_err(|reason| reason.of(&what()))?;
                Ok(BlobResponse { response, start: 0 })
            }
            StatusCode::PARTIAL_CONTENT if !whole => {
                let found = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let expected = format!("bytes {}-{}/", range.start, range.end.saturating_sub(1));
                let total = found.and_then(|text| text.strip_prefix(&expected));
                if total.is_none_or(|total| total != "*" && total != blob.size.to_string()) {
                    let found = found.unwrap_or("none").chars().take(80).collect::<String>();
                    let reason = format!(
                        "it answered with the `Content-Range` `{found}` for {}, expected `{expected}{}`",
                        what(),
                        blob.size
                    );
                    return Err(protocol(host, reason));
                }
                check_length(host, &response, range.end - range.start).map_err(|reason| reason.of(&what()))?;
                Ok(BlobResponse { response, start: range.start })
            }
            StatusCode::PARTIAL_CONTENT => {
                Err(protocol(host, format!("it sent a part of {}, all was asked for", what())))
            }
            _ => Err(host.refusal(&what(), response).await),
        }
    }

    /// Requests the length of a blob; `None` if the source does not have the blob.
    async fn length(&self, host: &Host, digest: &Digest) -> Result<Option<u64>, Error> {
        let mut headers = HeaderMap::new();
        self.mark(host, &mut headers);
        let url = host.url(&format!("/v2/{}/blobs/{digest}", self.repository));
        let request = Request { method: Method::HEAD, url, headers, scope: &self.scope, payload: Payload::None };
        let response = host.send(request).await?;
        let what = || format!("blob `{digest}` of `{}`", self.repository);
        match response.status() {
            StatusCode::OK => {
                let length = announced(&response);
                length.map(Some).ok_or_else(|| protocol(host, format!("it does not announce the length of {}", what())))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(host.refusal(&what(), response).await),
        }
    }

    /// Marks a request to a mirror, or for a copy. Two servers that copy from each other would
    /// otherwise forward a request forever.
    fn mark(&self, host: &Host, headers: &mut HeaderMap) {
        if self.is_for_copies {
            headers.insert(crate::MIRRORED, HeaderValue::from_static(crate::FOR_COPIES));
        } else if host.is_mirror() {
            headers.insert(crate::MIRRORED, HeaderValue::from_static("1"));
        }
    }

    /// The error of a remote without sources.
    fn no_source(&self) -> Error {
        Error::Settings(format!("there is no registry to ask for `{}`", self.repository))
    }

    pub(super) async fn read_from(&self, host: &Host, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        let length = range.end - range.start;
        let BlobResponse { mut response, start } = self.blob(host, blob, range.clone()).await?;
        if start != range.start || (start == 0 && range.end != blob.size && response.status() == StatusCode::OK) {
            return Err(protocol(host, format!("it does not send parts of blobs (asked for blob `{}`)", blob.digest)));
        }
        let mut bytes = bytes::BytesMut::with_capacity(length as usize);
        while let Some(piece) = host.next_piece(&mut response).await? {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > length {
                break;
            }
        }
        if bytes.len() as u64 == length {
            return Ok(bytes.freeze());
        }
        Err(protocol(host, format!("it sent {} bytes of blob `{}`, {length} were asked for", bytes.len(), blob.digest)))
    }
}

/// Reads parts of blobs from the first source that can send them, for readers that need a few MiB
/// of a file. If all sources fail, the error is [`content::Error::Remote`] with the error of the
/// last source. A source that ignores ranges is an [`Error::Protocol`].
impl Provider for Remote {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, content::Error> {
        let mut failure = None;
        for host in &*self.sources {
            match self.length(host, digest).await {
                Ok(Some(size)) => return Ok(Some(Descriptor::blob(*digest, size))),
                Ok(None) => failure = None,
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), |error| Err(error.into()))
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, content::Error> {
        let range = range.start.min(blob.size)..range.end.min(blob.size);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let mut failure = None;
        for host in &*self.sources {
            match self.read_from(host, blob, range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => failure = Some(error),
            }
        }
        Err(match failure {
            Some(Error::NotFound { .. }) => content::Error::BlobNotFound(blob.digest),
            failure => failure.unwrap_or_else(|| self.no_source()).into(),
        })
    }
}

/// An announced length that differs from the size in the manifest.
struct WrongLength<'a> {
    host: &'a Host,
    announced: u64,
    expected: u64,
}

impl WrongLength<'_> {
    fn of(self, what: &str) -> Error {
        protocol(self.host, format!("it announces {} bytes of {what}, expected {}", self.announced, self.expected))
    }
}

/// The length that a response announces, in bytes. The response to `HEAD` has no body, so the
/// length of the body is not used.
fn announced(response: &Response) -> Option<u64> {
    response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_length<'a>(host: &'a Host, response: &Response, expected: u64) -> Result<(), WrongLength<'a>> {
    match announced(response) {
        Some(announced) if announced != expected => Err(WrongLength { host, announced, expected }),
        // The length is optional.
        _ => Ok(()),
    }
}

pub(super) fn protocol(host: &Host, reason: String) -> Error {
    Error::Protocol { host: host.name().to_owned(), reason }
}
