//! The roles that the server requires of a storage, beyond storing blobs: the content of each
//! repository.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;

use std::ops::Range;
use std::time::SystemTime;

use bytes::Bytes;
use content::{Descriptor, Digest, Error, Expected, IngestId, Ingester, Provider};
use futures_util::stream::BoxStream;
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
    /// A manifest that refers to it is being pushed.
    Announced,
}

/// The reason for a question about a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The client reads the blob.
    Read,
    /// The client will not send the blob if it exists, so it must then stay for a while.
    Promise,
}

/// The bytes of a blob, in pieces.
pub type BlobStream = BoxStream<'static, Result<Bytes, Error>>;

/// The blobs of repositories. Repositories share bytes, but each has its own set of blobs.
pub trait BlobStorage: Provider + Ingester {
    /// Describes a blob, if the repository has it.
    fn blob(
        &self,
        of: &Repository,
        digest: &Digest,
        lookup: Lookup,
    ) -> impl Future<Output = Result<Option<Descriptor>, Error>> + Send;

    /// Streams a range of a blob of a repository. The blob stays until the stream is dropped. A
    /// stream that ends early ends with an error.
    fn stream(
        &self,
        of: &Repository,
        blob: &Descriptor,
        range: Range<u64>,
    ) -> impl Future<Output = Result<BlobStream, Error>> + Send;

    /// A URL at another server, from which the client can read the blob for a while without a
    /// login; `None` if there is none.
    fn link(&self, _of: &Repository, _blob: &Descriptor) -> impl Future<Output = Result<Option<String>, Error>> + Send {
        async { Ok(None) }
    }

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
    pub tags: Vec<NewTag>,
}

/// A tag to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTag {
    /// The tag.
    pub name: String,
    /// Whether it may name another manifest before.
    pub change: TagChange,
}

/// Whether a tag may be moved to another manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// The tag is set in any case.
    Allowed,
    /// The tag is set if it does not exist or names the same manifest.
    Forbidden,
}

/// A part of a sorted list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The entry before the first one of the page.
    pub after: Option<String>,
    /// The maximum number of entries.
    pub most: usize,
}

/// The entries of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// Whether entries follow.
    pub has_more: bool,
}

impl<T> Listed<T> {
    /// Cuts a page out of a list that is sorted by `name`.
    pub fn cut(sorted: Vec<T>, page: &Page, name: impl Fn(&T) -> String) -> Self {
        let start = page.after.as_ref().map_or(0, |after| sorted.partition_point(|entry| name(entry) <= *after));
        let has_more = sorted.len() - start > page.most;
        Self { entries: sorted.into_iter().skip(start).take(page.most).collect(), has_more }
    }
}

/// The manifests and tags of repositories.
pub trait ManifestStorage {
    /// Protects the blobs of a manifest from collection until it is stored.
    type Announcement: Send + Sync;

    /// Announces that a manifest with these blobs will be stored. Blobs that [`BlobStorage::blob`]
    /// finds afterwards stay until [`ManifestStorage::withdraw`].
    fn announce(
        &self,
        to: &Repository,
        blobs: &[Digest],
    ) -> impl Future<Output = Result<Self::Announcement, Error>> + Send;

    /// Ends an announcement, after the manifest was stored or refused.
    fn withdraw(&self, announcement: Self::Announcement) -> impl Future<Output = Result<(), Error>> + Send;

    /// The bytes of a manifest that the repository has.
    fn read_manifest(
        &self,
        of: &Repository,
        digest: &Digest,
    ) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send;

    /// Records that a client pulled a manifest; one of the pulls of an hour suffices. A storage
    /// that cannot record it may say so once an hour.
    fn record_pull(&self, of: &Repository, digest: &Digest) -> impl Future<Output = Result<(), Error>> + Send;

    /// The digest of a manifest, if the repository has it.
    fn manifest(&self, of: &Repository, at: &Reference) -> impl Future<Output = Result<Option<Digest>, Error>> + Send;

    /// Stores a manifest and sets its tags; durable when it returns. Fails with
    /// [`Error::BlobNotFound`] if a required blob was removed since it was checked, and with
    /// [`Error::TagExists`] if a tag that may not change names another manifest.
    fn put_manifest(
        &self,
        to: &Repository,
        manifest: NewManifest,
        announced: &Self::Announcement,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Removes a tag, or a manifest with all tags that name it.
    fn remove_manifest(&self, of: &Repository, at: &Reference) -> impl Future<Output = Result<Removal, Error>> + Send;

    /// The digests of the manifests about `subject`, sorted by their hex digits, which `page`
    /// names.
    fn referrers(
        &self,
        of: &Repository,
        subject: &Digest,
        page: &Page,
    ) -> impl Future<Output = Result<Listed<Digest>, Error>> + Send;

    /// The tags of a repository, sorted bytewise; `None` if there is no such repository.
    fn tags(&self, of: &Repository, page: &Page) -> impl Future<Output = Result<Option<Listed<String>>, Error>> + Send;

    /// The names of all repositories, in an order that does not change.
    fn repositories(&self, page: &Page) -> impl Future<Output = Result<Listed<String>, Error>> + Send;
}

/// A tag of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTag {
    /// The tag.
    pub name: String,
    /// The manifest that it names.
    pub digest: Digest,
    /// When it was set last.
    pub set: SystemTime,
    /// Whether the owner of the store has protected it from removal.
    pub is_pinned: bool,
}

/// A manifest of a repository, with or without a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedManifest {
    /// The manifest.
    pub digest: Digest,
    /// When it was pushed last.
    pub pushed: SystemTime,
}

/// The recorded pulls of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulls {
    /// When the pulls of the repository were looked at for the first time.
    pub since: SystemTime,
    /// The last recorded pull of each manifest.
    pub last: HashMap<Digest, SystemTime>,
}

impl Pulls {
    /// The last recorded pull, but not before the first look: earlier pulls are unknown.
    pub fn of(&self, manifest: &Digest) -> SystemTime {
        self.last.get(manifest).map_or(self.since, |last| self.since.max(*last))
    }
}

/// Upkeep of repositories: what they contain, and the removal of what is old.
pub trait RepositoryUpkeep {
    /// The tags of a repository, sorted bytewise; empty if there is no such repository.
    fn listed_tags(&self, of: &Repository) -> impl Future<Output = Result<Vec<ListedTag>, Error>> + Send;

    /// The manifests of a repository, with and without tags; empty if there is no such repository.
    fn listed_manifests(&self, of: &Repository) -> impl Future<Output = Result<Vec<ListedManifest>, Error>> + Send;

    /// When the manifests of a repository were pulled last. Pulls before the first call for the
    /// repository are unknown.
    fn pulls(&self, of: &Repository, now: SystemTime) -> impl Future<Output = Result<Pulls, Error>> + Send;

    /// Removes a tag, unless it names another manifest than the listed one.
    fn remove_tag(&self, of: &Repository, tag: &ListedTag) -> impl Future<Output = Result<Removal, Error>> + Send;

    /// Removes a manifest, unless a tag names it or it was pushed since it was listed.
    fn remove_untagged(
        &self,
        of: &Repository,
        manifest: &ListedManifest,
    ) -> impl Future<Output = Result<Removal, Error>> + Send;
}

/// A store that the server can serve.
pub trait Storage: BlobStorage + ManifestStorage + RepositoryUpkeep + Clone + Send + Sync + 'static {}

impl<T: BlobStorage + ManifestStorage + RepositoryUpkeep + Clone + Send + Sync + 'static> Storage for T {}
