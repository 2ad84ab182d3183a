//! The bucket as a registry's storage.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Provider};
use futures_util::StreamExt;
use futures_util::future::{join, try_join};
use registry::RepositoryName;
use registry::server::{BlobStorage, BlobStream, Lookup, Removal, Repository};

use crate::intents::reference_to;
use crate::keys::{self, RepositoryFolder};
use crate::location::Location;
use crate::marked::{Data, Link, MarkState, Marked, Seen, condemn, publish, rescue, retry};
use crate::objects::Objects;
use crate::open_uploads::OpenUploads;
use crate::part_sizes::PartSizes;
use crate::pulls::PullRecords;
use crate::upload::Upload;

/// How long a blob stays in a repository without a manifest that refers to it.
pub(crate) const LINK_LIFE: Duration = Duration::from_hours(24);
/// The age at which a question of a client renews a link.
const LINK_RENEWAL: Duration = Duration::from_hours(12);
/// How long a client can read a blob by a link to the storage.
pub const SIGNED_LIFE: Duration = Duration::from_hours(1);
/// Maximum number of remembered names of repositories, and of places of blobs. Beyond it, all are
/// forgotten.
const REMEMBERED: usize = 100_000;
/// How long the place of a blob is remembered. Its data stays for longer after a collection has
/// removed the blob (`CollectOptions::data_life`).
const RECENT: Duration = Duration::from_mins(1);

/// A registry's storage in a bucket. Clones share their connections. Any number of processes may
/// use the same bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub(crate) objects: Objects,
    sizes: PartSizes,
    open: OpenUploads,
    /// Repositories that are in the catalog.
    listed: Arc<Mutex<HashSet<RepositoryName>>>,
    /// Where blobs were a moment ago.
    recent: Arc<Mutex<HashMap<Digest, (Data, Instant)>>>,
    /// Pulls that this process has recorded.
    pub(crate) pull_records: PullRecords,
}

impl Bucket {
    /// Opens the bucket at a location, without a request.
    ///
    /// # Errors
    /// The settings of the location are incomplete.
    pub fn open(location: &Location) -> Result<Self, crate::Error> {
        let (objects, sizes) = location.connect()?;
        Ok(Self::over(objects, sizes))
    }

    pub(crate) fn over(objects: Objects, sizes: PartSizes) -> Self {
        Self {
            objects,
            sizes,
            open: OpenUploads::default(),
            listed: Arc::default(),
            recent: Arc::default(),
            pull_records: PullRecords::default(),
        }
    }

    /// The repository of a request; `None` for those of other registries, of which a bucket has
    /// none.
    pub(crate) fn own(repository: &Repository) -> Option<&RepositoryName> {
        repository.namespace.is_none().then_some(&repository.name)
    }

    /// Adds a repository to the catalog.
    pub(crate) async fn list_name(&self, name: &RepositoryName) -> Result<(), crate::Error> {
        if self.lock().contains(name) {
            return Ok(());
        }
        self.objects.swap(&keys::name(name), None, Bytes::new()).await?;
        let mut listed = self.lock();
        if listed.len() >= REMEMBERED {
            listed.clear();
        }
        listed.insert(name.clone());
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<RepositoryName>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes of a blob are.
    async fn data(&self, digest: &Digest) -> Result<Option<Data>, crate::Error> {
        let pointer = Seen::<Data>::read(&self.objects, &keys::pointer(digest)).await?;
        Ok(pointer.value.map(|pointer| pointer.content))
    }

    /// Where the bytes of a blob are that this replica has just found.
    async fn data_of(&self, blob: &Descriptor) -> Result<Data, Error> {
        let known = self.recent.lock().unwrap_or_else(PoisonError::into_inner).get(&blob.digest).cloned();
        if let Some((data, _)) = known.filter(|(_, found)| found.elapsed() < RECENT) {
            return Ok(data);
        }
        self.data(&blob.digest).await?.ok_or(Error::BlobNotFound(blob.digest))
    }

    /// Adds a blob to a repository. Returns `false` if the blob was collected meanwhile.
    async fn link_blob(&self, to: &RepositoryName, digest: &Digest) -> Result<bool, crate::Error> {
        let key = RepositoryFolder::Blobs.entry(to, &digest.hex());
        let ((_, written), ()) = try_join(publish(&self.objects, &key, Link {}), self.list_name(to)).await?;
        if written.is_some_and(is_old) && !self.renew(&key).await? {
            return Ok(false);
        }
        self.has_data(digest).await
    }

    /// Whether a blob exists whose link was just written. The pointer is read last: a collection
    /// that condemns it later sees the link.
    async fn has_data(&self, digest: &Digest) -> Result<bool, crate::Error> {
        Ok(rescue::<Data>(&self.objects, &keys::pointer(digest)).await?.is_some())
    }

    /// Whether a repository has a blob, without a change.
    async fn read_blob(&self, of: &RepositoryName, digest: &Digest) -> Result<Option<Descriptor>, crate::Error> {
        let link = RepositoryFolder::Blobs.entry(of, &digest.hex());
        let (link, data) = join(Seen::<Link>::read(&self.objects, &link), self.data(digest)).await;
        let is_linked = link?.value.is_some();
        Ok(data?.filter(|_| is_linked).map(|data| self.found(digest, data)))
    }

    /// Whether a repository has a blob, which then stays for a while.
    async fn promise_blob(&self, of: &RepositoryName, digest: &Digest) -> Result<Option<Descriptor>, crate::Error> {
        let (key, pointer) = (RepositoryFolder::Blobs.entry(of, &digest.hex()), keys::pointer(digest));
        let (link, seen) = join(rescue::<Link>(&self.objects, &key), Seen::<Data>::read(&self.objects, &pointer)).await;
        let (Some((_, modified)), seen) = (link?, seen?) else { return Ok(None) };
        let data = match seen.value {
            Some(live) if live.state == MarkState::Live => live.content,
            _ => match rescue::<Data>(&self.objects, &pointer).await? {
                Some((data, _)) => data,
                None => return Ok(None),
            },
        };
        if is_old(modified) && !(self.renew(&key).await? && self.has_data(digest).await?) {
            return Ok(None);
        }
        Ok(Some(self.found(digest, data)))
    }

    /// Remembers where a blob is, for the next step of the same request.
    fn found(&self, digest: &Digest, data: Data) -> Descriptor {
        let blob = Descriptor::blob(*digest, data.size);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= REMEMBERED {
            recent.clear();
        }
        recent.insert(*digest, (data, Instant::now()));
        blob
    }

    /// Writes a link again, so that it is new. Returns `false` if it is gone.
    async fn renew(&self, key: &str) -> Result<bool, crate::Error> {
        retry(key, || async {
            let seen = Seen::<Link>::read(&self.objects, key).await?;
            let live = Marked::new(MarkState::Live, Link {});
            Ok(if seen.value.is_none() {
                Some(false)
            } else if seen.replace(&self.objects, key, Some(&live)).await? {
                Some(true)
            } else {
                None
            })
        })
        .await
    }
}

impl Bucket {
    /// Condemns the link of a blob, looks for a manifest that refers to the blob or is about to,
    /// and removes the link if there is none.
    async fn unlink_blob(&self, of: &RepositoryName, digest: &Digest) -> Result<Removal, crate::Error> {
        let (objects, key) = (&self.objects, RepositoryFolder::Blobs.entry(of, &digest.hex()));
        let removed = retry(&key, || async {
            let Some(condemned) = condemn::<Link>(objects, &key).await? else { return Ok(Some(Removal::NotThere)) };
            if let Some(kept) = reference_to(objects, of, digest).await? {
                rescue::<Link>(objects, &key).await?;
                return Ok(Some(kept));
            }
            Ok(condemned.replace(objects, &key, None).await?.then_some(Removal::Done))
        });
        let removed = removed.await?;
        if removed == Removal::Done {
            // Perhaps this was the last repository. If not, the next question about the blob makes
            // it live again.
            condemn::<Data>(objects, &keys::pointer(digest)).await?;
        }
        Ok(removed)
    }
}

/// Whether a question about a blob renews its link.
fn is_old(modified: SystemTime) -> bool {
    SystemTime::now().duration_since(modified).is_ok_and(|age| age > LINK_RENEWAL)
}

impl Provider for Bucket {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        Ok(self.data(digest).await?.map(|data| Descriptor::blob(*digest, data.size)))
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        let data = self.data_of(blob).await?;
        let end = range.end.min(data.size);
        Ok(self.objects.range(&keys::data(&data.data), range.start.min(end)..end).await?)
    }
}

impl Ingester for Bucket {
    type Ingest = Upload;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<Upload, Error> {
        let open = self.open.open(id)?;
        let upload = Upload::open(&self.objects, self.sizes, open, expected).await?;
        upload.ok_or_else(|| Error::Busy(id.to_string()))
    }
}

impl BlobStorage for Bucket {
    async fn blob(&self, of: &Repository, digest: &Digest, lookup: Lookup) -> Result<Option<Descriptor>, Error> {
        let Some(of) = Self::own(of) else { return Ok(None) };
        Ok(match lookup {
            Lookup::Read => self.read_blob(of, digest).await?,
            Lookup::Promise => self.promise_blob(of, digest).await?,
        })
    }

    async fn stream(&self, _: &Repository, blob: &Descriptor, range: Range<u64>) -> Result<BlobStream, Error> {
        let data = self.data_of(blob).await?;
        let bytes = self.objects.stream(&keys::data(&data.data), range).await?;
        Ok(bytes.map(|piece| piece.map_err(Error::from)).boxed())
    }

    async fn link(&self, _: &Repository, blob: &Descriptor) -> Result<Option<String>, Error> {
        let data = self.data_of(blob).await?;
        Ok(self.objects.link(&keys::data(&data.data), SIGNED_LIFE).await?)
    }

    /// Without `from`, a blob with a live pointer is in some repository.
    async fn mount(&self, from: Option<&Repository>, to: &Repository, digest: &Digest) -> Result<bool, Error> {
        let Some(to) = Self::own(to) else { return Ok(false) };
        let found = if let Some(from) = from {
            self.blob(from, digest, Lookup::Promise).await?.is_some()
        } else {
            let pointer = Seen::<Data>::read(&self.objects, &keys::pointer(digest)).await?;
            pointer.value.is_some_and(|pointer| pointer.state == MarkState::Live)
        };
        Ok(found && self.link_blob(to, digest).await?)
    }

    async fn remove_blob(&self, of: &Repository, digest: &Digest) -> Result<Removal, Error> {
        let Some(of) = Self::own(of) else { return Ok(Removal::NotThere) };
        Ok(self.unlink_blob(of, digest).await?)
    }

    async fn resume(&self, id: &IngestId) -> Result<Option<Upload>, Error> {
        let open = self.open.open(id)?;
        let upload = Upload::open(&self.objects, self.sizes, open, Expected::Unknown).await?;
        Ok(upload.filter(Upload::is_stored))
    }

    async fn finish(&self, to: &Repository, mut upload: Upload, expected: Expected) -> Result<(Digest, u64), Error> {
        let reason = "a bucket has no repositories of other registries";
        let to = Self::own(to).ok_or_else(|| Error::BadName { name: to.to_string(), what: "a repository", reason })?;
        upload.expect(expected).await?;
        let done = upload.complete().await?;
        let (digest, size) = (done.digest, done.data.size);
        let (linked, ()) = tokio::join!(self.link_blob(to, &digest), done.clean());
        if !linked? {
            return Err(crate::Error::Collected { blob: digest }.into());
        }
        Ok((digest, size))
    }
}
