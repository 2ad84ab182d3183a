//! What the server needs of a store, beyond keeping blobs: which repository has what.

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use content::{Descriptor, Digest, Error, Expected, IngestId, Ingester, Provider};
use manifests::Document;

use crate::RepositoryName;

/// A repository as a request names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repository {
    /// The name in the path.
    pub name: RepositoryName,
    /// The registry that a mirror is asked on behalf of: the query parameter `ns`, as containerd sends it.
    pub namespace: Option<String>,
    /// Whether who asks is a client that asks us as a mirror, or may not make us ask others: then what is not here is not here.
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

/// Which manifest of a repository is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// What the tag names at the moment.
    Tag(String),
    /// Exactly this one.
    Digest(Digest),
}

impl Reference {
    /// Reads a path's last part.
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

/// What became of a request to remove a blob, a tag or a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone from the repository.
    Done,
    /// It was not there.
    NotThere,
    /// The owner of the store has pinned it.
    Pinned,
    /// This manifest of the repository refers to it.
    Referenced(Digest),
}

/// The blobs of repositories. Bytes are shared between repositories; which of them has a blob is not.
pub trait BlobStorage: Provider + Ingester {
    /// What keeps a blob while it is sent.
    type Hold: Send + 'static;

    /// Keeps a blob, where it is there when this returns, until what it gives is dropped: it may be removed while it is sent.
    fn hold(&self, digest: &Digest) -> Self::Hold;

    /// The length of a blob in bytes, where the repository has it.
    fn blob(&self, of: &Repository, digest: &Digest) -> impl Future<Output = Result<Option<u64>, Error>> + Send;

    /// Puts a blob into `to` that is in `from` (`None`: in any repository). `false` where it is not there.
    fn mount(
        &self,
        from: Option<&Repository>,
        to: &Repository,
        digest: &Digest,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Takes a blob out of a repository, unless a manifest there refers to it.
    fn remove_blob(&self, of: &Repository, digest: &Digest) -> impl Future<Output = Result<Removal, Error>> + Send;

    /// The upload of that id, where it was begun; also by an earlier process.
    fn resume(&self, id: &IngestId) -> impl Future<Output = Result<Option<Self::Ingest>, Error>> + Send;

    /// Commits an upload and puts the blob into `to`, so that no collection comes between.
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
    /// The digest by which the client knows it.
    pub digest: Digest,
    /// Its bytes.
    pub raw: Bytes,
    /// What they say.
    pub document: Document,
    /// The blobs that must be in the repository.
    pub required: Vec<Descriptor>,
    /// The tags that it gets.
    pub tags: Vec<String>,
}

/// The manifests of repositories, and their names.
pub trait ManifestStorage {
    /// The digest of a manifest, where the repository has it.
    fn manifest(&self, of: &Repository, at: &Reference) -> impl Future<Output = Result<Option<Digest>, Error>> + Send;

    /// Keeps a manifest and gives it its tags; durable when it returns. [`Error::BlobNotFound`] where a required blob
    /// has gone since it was looked for.
    fn put_manifest(&self, to: &Repository, manifest: NewManifest) -> impl Future<Output = Result<(), Error>> + Send;

    /// Removes a tag, or a manifest with all tags that name it.
    fn remove_manifest(&self, of: &Repository, at: &Reference) -> impl Future<Output = Result<Removal, Error>> + Send;

    /// The digests of the manifests that are about `subject`, sorted.
    fn referrers(&self, of: &Repository, subject: &Digest) -> impl Future<Output = Result<Vec<Digest>, Error>> + Send;

    /// The tags of a repository, sorted bytewise; `None` where there is no such repository.
    fn tags(&self, of: &Repository) -> impl Future<Output = Result<Option<Vec<String>>, Error>> + Send;

    /// The names of all repositories, sorted.
    fn repositories(&self) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
}

/// A store that the server can serve.
pub trait Storage: BlobStorage + ManifestStorage + Clone + Send + Sync + 'static {}

impl<T: BlobStorage + ManifestStorage + Clone + Send + Sync + 'static> Storage for T {}
