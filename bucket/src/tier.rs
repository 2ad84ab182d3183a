//! A tier on object storage.
//!
//! # Layout
//! ```text
//! tier/owner           the id of the store to which the tier belongs
//! tier/blobs/AA/HEX    the bytes of a blob
//! tier/uploads/ID      the key and the multipart upload of a blob that is being written
//! ```
//! A blob of one part is one request. A larger one is a multipart upload, which is completed only
//! if the digest is right, so a blob is visible as a whole or not at all. An upload is recorded
//! before it has parts; [`BucketTier::open`] discards uploads of an earlier process.
//!
//! The folder is not one of the registry's ([`Bucket`](crate::Bucket)): both may use one prefix.

use async_trait::async_trait;
use bytes::Bytes;
use content::tier::{BlobTier, Check, Pieces, TierOwner};
use content::{Descriptor, Digest, Error};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::keys;
use crate::location::Location;
use crate::marked::{document, parse};
use crate::objects::Objects;
use crate::part_sizes::{MOST_PARTS, PartSizes};

const OWNER: &str = "tier/owner";
const BLOBS: &str = "tier/blobs";
const UPLOADS: &str = "tier/uploads";

/// A tier in a bucket.
#[derive(Clone, Debug)]
pub struct BucketTier {
    objects: Objects,
    sizes: PartSizes,
    /// The location, for messages.
    location: String,
    /// The id of the store to which the tier belongs.
    store: String,
}

/// The document of an upload.
#[derive(Debug, Serialize, Deserialize)]
struct UploadDocument {
    key: String,
    upload: String,
}

/// A multipart upload.
struct PartsUpload<'a> {
    objects: &'a Objects,
    key: &'a str,
    /// The key of its record.
    record: String,
    upload: String,
    /// The ids of the parts that were sent.
    ids: Vec<String>,
    /// The part that is being sent, while the next one fills.
    sending: Option<JoinHandle<Result<String, crate::Error>>>,
}

impl BucketTier {
    /// Opens the tier at a location for a store, and reserves it. Uploads that an earlier process
    /// did not finish are discarded.
    ///
    /// # Errors
    /// The storage cannot be used, or the tier belongs to another store.
    pub async fn open(location: &Location, store: &TierOwner) -> Result<Self, Error> {
        let (objects, sizes) = location.connect()?;
        Self::over(objects, sizes, location.to_string(), store).await
    }

    pub(crate) async fn over(
        objects: Objects,
        sizes: PartSizes,
        location: String,
        store: &TierOwner,
    ) -> Result<Self, Error> {
        let tier = Self { objects, sizes, location, store: store.id.clone() };
        tier.claim(store).await?;
        tier.discard_uploads().await?;
        Ok(tier)
    }

    async fn claim(&self, store: &TierOwner) -> Result<(), Error> {
        if store.check(&self.location, self.owner().await?.as_deref())? {
            self.objects.swap(OWNER, None, Bytes::copy_from_slice(store.id.as_bytes())).await?;
            // Read again: another store may have come first.
            store.check(&self.location, self.owner().await?.as_deref())?;
        }
        Ok(())
    }

    async fn owner(&self) -> Result<Option<String>, Error> {
        let object = self.objects.get(OWNER).await?;
        Ok(object.map(|object| String::from_utf8_lossy(&object.bytes).into_owned()))
    }

    /// Fails if the bucket is not the one that was opened, or is gone: a missing object then says
    /// nothing about its blob.
    async fn check_owner(&self) -> Result<(), Error> {
        let found = self.owner().await?;
        if found.as_deref() == Some(&*self.store) {
            return Ok(());
        }
        let (location, expected) = (&self.location, &self.store);
        let found = found.unwrap_or_else(|| "nothing".to_owned());
        let reason = format!(
            "the object `{OWNER}` of the tier `{location}` has `{found}`, expected `{expected}`; correct bucket, prefix or \
             endpoint, or restore the bucket"
        );
        Err(Error::Other(reason.into()))
    }

    async fn discard_uploads(&self) -> Result<(), Error> {
        let mut entries = self.objects.list(UPLOADS, None);
        while let Some(entry) = entries.try_next().await? {
            if let Err(error) = self.discard_upload(&entry.key).await {
                tracing::warn!("an unfinished upload stays in the tier: {error}");
            }
        }
        Ok(())
    }

    async fn discard_upload(&self, record: &str) -> Result<(), crate::Error> {
        let Some(object) = self.objects.get(record).await? else { return Ok(()) };
        let UploadDocument { key, upload } = parse(record, &object.bytes)?;
        self.objects.abort_parts(&key, &upload).await?;
        self.objects.delete(record).await
    }

    /// Sends a blob of more than one part.
    async fn put_parts(&self, key: &str, size: u64, first: Vec<Bytes>, mut rest: Filling) -> Result<(), Error> {
        let mut parts = PartsUpload::begin(&self.objects, key).await?;
        let sent = parts.send_all(first, &mut rest, self.sizes).await;
        let done = match sent.and_then(|()| rest.check.finish()) {
            Ok(()) => parts.complete(size).await,
            Err(error) => Err(error),
        };
        parts.end(done.is_ok()).await;
        done
    }
}

/// The bytes of a blob, cut into parts and checked.
struct Filling {
    bytes: Pieces,
    /// Bytes behind the last part.
    left: Bytes,
    check: Check,
}

impl Filling {
    /// The next `size` bytes, or fewer at the end.
    async fn part(&mut self, size: u64) -> Result<Vec<Bytes>, Error> {
        let (mut part, mut missing) = (Vec::new(), size as usize);
        while missing > 0 {
            if self.left.is_empty() {
                let Some(next) = self.bytes.try_next().await? else { break };
                self.check.add(&next)?;
                self.left = next;
            }
            let own = self.left.split_to(missing.min(self.left.len()));
            missing -= own.len();
            part.push(own);
        }
        Ok(part)
    }
}

impl<'a> PartsUpload<'a> {
    async fn begin(objects: &'a Objects, key: &'a str) -> Result<Self, Error> {
        let upload = objects.begin_parts(key).await?;
        let record = format!("{UPLOADS}/{}", keys::random());
        let entry = UploadDocument { key: key.to_owned(), upload: upload.clone() };
        objects.put(&record, vec![document(&entry)]).await?;
        Ok(Self { objects, key, record, upload, ids: Vec::new(), sending: None })
    }

    /// Sends all parts. One is sent while the next one fills.
    async fn send_all(&mut self, first: Vec<Bytes>, rest: &mut Filling, sizes: PartSizes) -> Result<(), Error> {
        let (mut part, mut number) = (first, 0);
        while !part.is_empty() {
            self.sent().await?;
            if number >= MOST_PARTS {
                let most = sizes.most() >> 30;
                return Err(Error::Other(format!("a blob on this storage has at most {most} GiB").into()));
            }
            let (objects, key, upload) = (self.objects.clone(), self.key.to_owned(), self.upload.clone());
            self.sending = Some(tokio::spawn(async move { objects.put_part(&key, &upload, number, part).await }));
            number += 1;
            part = rest.part(sizes.next(number, None)).await?;
        }
        self.sent().await
    }

    /// Waits for the part that is being sent.
    async fn sent(&mut self) -> Result<(), Error> {
        if let Some(sending) = self.sending.take() {
            self.ids.push(sending.await.map_err(|e| Error::Other(Box::new(e)))??);
        }
        Ok(())
    }

    async fn complete(&self, size: u64) -> Result<(), Error> {
        match self.objects.complete_parts(self.key, &self.upload, &self.ids).await {
            Ok(()) => Ok(()),
            // If the response to the first attempt was lost, the upload does not exist any more.
            Err(error) if error.is_not_found() && self.objects.size(self.key).await? == Some(size) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Discards the parts of an upload that failed, and removes its record. If that fails, the next
    /// [`BucketTier::open`] does it.
    async fn end(mut self, is_complete: bool) {
        if let Some(sending) = self.sending.take() {
            // Its part is discarded.
            let _ = sending.await;
        }
        let ended = async {
            if !is_complete {
                self.objects.abort_parts(self.key, &self.upload).await?;
            }
            self.objects.delete(&self.record).await
        };
        if let Err(error) = ended.await {
            tracing::warn!("an upload to the tier leaves its record for now: {error}");
        }
    }
}

fn key(blob: &Digest) -> String {
    let hex = blob.hex();
    format!("{BLOBS}/{}/{hex}", &hex[..2])
}

#[async_trait]
impl BlobTier for BucketTier {
    async fn put(&self, blob: &Descriptor, bytes: Pieces) -> Result<(), Error> {
        let key = key(&blob.digest);
        let mut filling = Filling { bytes, left: Bytes::new(), check: Check::of(blob) };
        let size = self.sizes.next(0, None);
        let first = filling.part(size).await?;
        if blob.size > size {
            return self.put_parts(&key, blob.size, first, filling).await;
        }
        // Bytes behind the first part are more than the blob has; reading them is the check.
        filling.part(1).await?;
        filling.check.finish()?;
        Ok(self.objects.put(&key, first).await?)
    }

    async fn size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let size = self.objects.size(&key(digest)).await?;
        if size.is_none() {
            self.check_owner().await?;
        }
        Ok(size)
    }

    async fn read(&self, blob: &Descriptor, from: u64) -> Result<Pieces, Error> {
        let key = key(&blob.digest);
        if from >= blob.size {
            // No request for an empty range; the blob may still be missing.
            self.size(&blob.digest).await?.ok_or(Error::BlobNotFound(blob.digest))?;
            return Ok(futures_util::stream::empty().boxed());
        }
        match self.objects.stream(&key, from..blob.size).await {
            Ok(bytes) => Ok(bytes.map_err(Error::from).boxed()),
            Err(error) if error.is_not_found() => {
                self.check_owner().await?;
                Err(Error::BlobNotFound(blob.digest))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn remove(&self, digest: &Digest) -> Result<(), Error> {
        Ok(self.objects.delete(&key(digest)).await?)
    }

    fn list(&self) -> BoxStream<'static, Result<(Digest, u64), Error>> {
        let found = self.objects.list(BLOBS, None).map_err(Error::from);
        let own = |entry: crate::objects::Entry| async move {
            Ok(keys::digest(keys::last(&entry.key)).map(|digest| (digest, entry.size)))
        };
        let tier = self.clone();
        let end = futures_util::stream::once(async move { tier.check_owner().await });
        // At the end, so that a bucket that is gone meanwhile is no empty tier.
        found.try_filter_map(own).chain(end.try_filter_map(|()| async { Ok(None) })).boxed()
    }
}
