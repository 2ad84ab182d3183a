//! The roles that the server requires of a storage, beyond storing blobs: the content of each
//! repository.

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use content::{Descriptor, Digest, Error, Expected, IngestId, Ingester, Provider};
use manifests::Document;

use crate::RepositoryName;

/// The repository of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repository {
    /// The name in the path.
    pub name: RepositoryName,
    /// The registry that this server mirrors for the request: the query parameter `ns`, as
    /// containerd sends it.
    pub namespace: Option<String>,
    /// True if the request must be answered from this store alone: the client uses this server as a
    /// mirror, or may not trigger an upstream fetch.
    pub mirrored: bool,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// Selects a manifest of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The manifest that the tag names at the moment.
    Tag(String),
    /// The manifest with this digest.
    Digest(Digest),
}

impl Reference {
    /// Parses the last part of a path.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains(':') {
            return text.parse().map(Self::Digest).map_err(|e| e.to_string());
        }
        let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let allowed = |b: u8| word(b) || matches!(b, b'.' | b'-');
        if text.len() > 128 || !text.bytes().next().is_some_and(word) || !text.bytes().all(allowed) {
            let shown: String = text.chars().take(140).collect();
            return Err(format!(
                "`{shown}` is neither a digest nor a tag: a tag has 1 to 128 letters, digits, `.`, `_`, `-`"
            ));
        }
        Ok(Self::Tag(text.to_owned()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => write!(f, "{digest}"),
        }
    }
}

/// The result of a request to remove a blob, a tag or a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It was removed from the repository.
    Done,
    /// The repository did not have it.
    NotThere,
    /// The owner of the store has pinned it.
    Pinned,
    /// This manifest of the repository refers to it.
    Referenced(Digest),
}

/// The blobs of repositories. Repositories share bytes, but each has its own set of blobs.
pub trait BlobStorage: Provider + Ingester {
    /// A guard that keeps a blob while it is sent.
    type Hold: Send + 'static;

    /// Keeps a blob while it is sent, if it exists when this returns, until the returned value is
    /// dropped.
    fn hold(&self, digest: &Digest) -> Self::Hold;

    /// Describes a blob, if the repository has it.
    fn blob(&self, of: &Repository, digest: &Digest) -> impl Future<Output = Result<Option<Descriptor>, Error>> + Send;

    /// Adds a blob of `from` (`None`: of any repository) to `to`. Returns `false` if `from` does
    /// not have it.
    fn mount(
        &self,
        from: Option<&Repository>,
        to: &Repository,
        digest: &Digest,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes a blob from a repository, unless a manifest there refers to it.
    fn remove_blob(&self, of: &Repository, digest: &Digest) -> impl Future<Output = Result<Removal, Error>> + Send;

    /// Opens the upload with this id, if it exists; an earlier process may have begun it.
    fn resume(&self, id: &IngestId) -> impl Future<Output = Result<Option<Self::Ingest>, Error>> + Send;

    /// Commits an upload and adds the blob to `to`. No collection can remove the blob in between.
    fn finish(
        &self,
        to: &Repository,
        upload: Self::Ingest,
        expected: Expected,
    ) -> impl Future<Output = Result<(Digest, u64), Error>> + Send;
}

/// A manifest that passed the server's checks.
#[derive(Clone, Debug)]
pub struct NewManifest {
    /// The digest that the client uses.
    pub digest: Digest,
    /// The bytes of the manifest.
    pub raw: Bytes,
    /// The parsed bytes.
    pub document: Document,
    /// The blobs that must be in the repository.
    pub required: Vec<Descriptor>,
    /// The tags to set.
    pub tags: Vec<String>,
}

/// The manifests and tags of repositories.
pub trait ManifestStorage {
    /// The digest of a manifest, if the repository has it.
    fn manifest(&self, of: &Repository, at: &Reference) -> impl Future<Output = Result<Option<Digest>, Error>> + Send;

    /// Stores a manifest and sets its tags; durable when it returns. Fails with
    /// [`Error::BlobNotFound`] if a required blob was removed since it was checked.
    fn put_manifest(&self, to: &Repository, manifest: NewManifest) -> impl Future<Output = Result<(), Error>> + Send;

    /// Removes a tag, or a manifest with all tags that name it.
    fn remove_manifest(&self, of: &Repository, at: &Reference) -> impl Future<Output = Result<Removal, Error>> + Send;

    /// The digests of the manifests about `subject`, sorted.
    fn referrers(&self, of: &Repository, subject: &Digest) -> impl Future<Output = Result<Vec<Digest>, Error>> + Send;

    /// The tags of a repository, sorted bytewise; `None` if there is no such repository.
    fn tags(&self, of: &Repository) -> impl Future<Output = Result<Option<Vec<String>>, Error>> + Send;

    /// The names of all repositories, sorted.
    fn repositories(&self) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
}

/// A store that the server can serve.
pub trait Storage: BlobStorage + ManifestStorage + Clone + Send + Sync + 'static {}

impl<T: BlobStorage + ManifestStorage + Clone + Send + Sync + 'static> Storage for T {}
