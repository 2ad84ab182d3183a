//! Collection: removes blobs to which no manifest refers, and what interrupted uploads left.
//!
//! ```text
//! pusher:    intent ─▶ read pointer ─▶ manifest ─▶ delete intent
//!                      live: go on; condemned: make it live; gone: send the blob again
//! collector: roots ─▶ condemn ─▶ roots again ─▶ trash ─▶ gone ─▶ (later) delete data
//! ```
//! The roots are the blobs of intents, manifests and recent links; **intents are read before
//! manifests**. A pusher whose intent is older than the second reading of the roots is seen there.
//! A younger one reads the pointer after it was condemned, and makes it live again. So neither
//! waits for the other, and any number of pushers and collectors may run at the same time. Tests
//! run this code in the orders that `shuttle` chooses.
//!
//! Data stays in the trash until links to it that were signed before have expired. Expired uploads
//! and intents are removed; their age is the only other use of a clock.
//!
//! Memory: 8 bytes of each digest to which something refers, so a blob whose first 8 bytes equal
//! those of another one may stay; and the blobs that the collection removes.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use content::Digest;
use futures_util::{StreamExt, TryStreamExt};

use crate::bucket::LINK_LIFE;
use crate::intents::{IntentDocument, references};
use crate::keys::{self, RepositoryFolder};
use crate::marked::{Data, Link, Seen, condemn, document, parse, rescue};
use crate::objects::{Entry, Object, Objects};
use crate::session::{Phase, Session};
use crate::upload::remove;
use crate::{Bucket, Error, SIGNED_LIFE, trash};

/// Number of objects that are read at a time.
const READS: usize = 32;

/// Options of a collection.
#[derive(Clone, Copy, Debug)]
pub struct CollectOptions {
    /// How long a blob stays in a repository without a manifest that refers to it. It must be
    /// longer than 12 hours while clients push: a question about a blob renews a link of this age.
    pub link_life: Duration,
    /// How long data stays after its blob is gone. It must be longer than an hour while clients
    /// pull: a link that a client got is valid as long.
    pub data_life: Duration,
    /// The age at which uploads and intents expire. It must be longer than an hour while clients
    /// push: a request may take that long for a commit or a manifest.
    pub upload_life: Duration,
    /// The time.
    pub now: SystemTime,
}

impl CollectOptions {
    /// The defaults: a day for blobs and uploads; for data, the life of a signed link and a little
    /// more.
    pub fn at(now: SystemTime) -> Self {
        Self {
            link_life: LINK_LIFE,
            data_life: SIGNED_LIFE + Duration::from_mins(10),
            upload_life: Duration::from_hours(24),
            now,
        }
    }

    fn is_older(&self, modified: SystemTime, life: Duration) -> bool {
        // Objects that this collection has written are younger than its beginning.
        life.is_zero() || self.now.duration_since(modified).is_ok_and(|age| age >= life)
    }
}

/// The result of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of blobs in the bucket.
    pub blobs: u64,
    /// Number of blobs that are gone since this collection.
    pub removed: u64,
    /// Their size in bytes.
    pub removed_bytes: u64,
    /// Number of data objects that were deleted, of blobs that this or an earlier collection has
    /// removed.
    pub deleted: u64,
    /// Number of expired uploads that were removed.
    pub uploads: u64,
}

/// Blobs to which something refers, by the first 8 bytes of their digests.
#[derive(Debug, Default)]
struct Roots {
    blobs: HashSet<u64>,
    /// The keys of the manifests that were read, which never change, as hashes.
    manifests: HashSet<[u8; 16]>,
}

fn first<const N: usize>(digest: &Digest) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&digest.as_bytes()[..N]);
    bytes
}

fn fingerprint(digest: &Digest) -> u64 {
    u64::from_le_bytes(first(digest))
}

impl Roots {
    fn add(&mut self, digest: &Digest) {
        self.blobs.insert(fingerprint(digest));
    }

    fn contains(&self, digest: &Digest) -> bool {
        self.blobs.contains(&fingerprint(digest))
    }

    /// Adds what the bucket refers to now. A manifest that was read before and is deleted stays a
    /// root.
    async fn read(&mut self, objects: &Objects, options: &CollectOptions) -> Result<(), Error> {
        let mut intents = objects.list(keys::INTENTS, None);
        while let Some(entry) = intents.try_next().await? {
            if let Some(object) = objects.get(&entry.key).await? {
                let intent: IntentDocument = parse(&entry.key, &object.bytes)?;
                intent.blobs.iter().filter_map(|text| text.parse().ok()).for_each(|blob| self.add(&blob));
            }
        }
        let mut manifests = Vec::new();
        let mut entries = objects.list(keys::REPOSITORIES, None);
        while let Some(entry) = entries.try_next().await? {
            match RepositoryFolder::parse(&entry.key) {
                Some((RepositoryFolder::Blobs, hex))
                    if entry.size > 0 && !options.is_older(entry.modified, options.link_life) =>
                {
                    if let Some(blob) = keys::digest(hex) {
                        self.add(&blob);
                    }
                }
                Some((RepositoryFolder::Manifests, _)) => manifests.push(entry.key),
                _ => {}
            }
            if manifests.len() >= READS * 8 {
                self.read_manifests(objects, std::mem::take(&mut manifests)).await?;
            }
        }
        self.read_manifests(objects, manifests).await
    }

    async fn read_manifests(&mut self, objects: &Objects, keys: Vec<String>) -> Result<(), Error> {
        let own = |key: &String| first::<16>(&Digest::of(key.as_bytes()));
        let new: Vec<String> = keys.into_iter().filter(|key| !self.manifests.contains(&own(key))).collect();
        let mut reads = futures_util::stream::iter(new)
            .map(|key| async move { objects.get(&key).await.map(|object| (key, object)) })
            .buffer_unordered(READS);
        while let Some((key, object)) = reads.try_next().await? {
            let Some(object) = object else { continue };
            // A manifest that cannot be read may refer to any blob, so the collection stops here.
            references(&key, &object.bytes)?.iter().for_each(|blob| self.add(blob));
            self.manifests.insert(own(&key));
        }
        Ok(())
    }
}

/// A blob that this collection has condemned.
struct CondemnedBlob {
    digest: Digest,
    pointer: Seen<Data>,
}

impl Bucket {
    /// Removes blobs to which nothing refers, and what interrupted uploads have left.
    ///
    /// # Errors
    /// The storage fails, or a manifest cannot be read. Nothing is lost; the next collection goes
    /// on.
    pub async fn collect(&self, options: &CollectOptions) -> Result<Collected, Error> {
        let mut done = Collected::default();
        let objects = &self.objects;
        // Expired intents and uploads go first, so that this collection removes their blobs, too.
        self.expire_intents(options).await?;
        self.expire_uploads(options, &mut done).await?;
        let mut roots = Roots::default();
        roots.read(objects, options).await?;
        let candidates = self.condemn(&roots, &mut done).await?;
        if !candidates.is_empty() {
            roots.read(objects, options).await?;
            let mut gone = HashSet::new();
            for candidate in candidates {
                let digest = candidate.digest;
                if self.end(&roots, candidate, &mut done).await? {
                    gone.insert(digest);
                }
            }
            self.end_links(&gone).await?;
        }
        done.deleted = trash::empty(objects, |modified| options.is_older(modified, options.data_life)).await?;
        Ok(done)
    }

    /// The blobs that a collection would remove now, without a change.
    ///
    /// # Errors
    /// As for [`Bucket::collect`].
    pub async fn collectable(&self, options: &CollectOptions) -> Result<Collected, Error> {
        let mut found = Collected::default();
        let mut roots = Roots::default();
        roots.read(&self.objects, options).await?;
        let mut entries = self.objects.list(keys::BLOBS, None);
        while let Some(entry) = entries.try_next().await? {
            found.blobs += u64::from(entry.size > 0);
            let Some(digest) = unreferenced(&roots, &entry) else { continue };
            let pointer = Seen::<Data>::read(&self.objects, &keys::pointer(&digest)).await?;
            if let Some(pointer) = pointer.value {
                found.removed += 1;
                found.removed_bytes += pointer.content.size;
            }
        }
        Ok(found)
    }

    /// Condemns the pointers of blobs to which nothing refers.
    async fn condemn(&self, roots: &Roots, done: &mut Collected) -> Result<Vec<CondemnedBlob>, Error> {
        let objects = &self.objects;
        let mut candidates = Vec::new();
        let mut entries = objects.list(keys::BLOBS, None);
        while let Some(entry) = entries.try_next().await? {
            done.blobs += u64::from(entry.size > 0);
            let Some(digest) = unreferenced(roots, &entry) else { continue };
            if let Some(pointer) = condemn::<Data>(objects, &entry.key).await? {
                candidates.push(CondemnedBlob { digest, pointer });
            }
        }
        Ok(candidates)
    }

    /// Empties the pointer of a condemned blob, unless something refers to it by now. Returns
    /// whether the blob is gone.
    async fn end(&self, roots: &Roots, candidate: CondemnedBlob, done: &mut Collected) -> Result<bool, Error> {
        let key = keys::pointer(&candidate.digest);
        let Some(pointer) = &candidate.pointer.value else { return Ok(false) };
        if roots.contains(&candidate.digest) {
            rescue::<Data>(&self.objects, &key).await?;
            return Ok(false);
        }
        trash::add(&self.objects, &candidate.digest, &pointer.content).await?;
        let is_gone = candidate.pointer.replace(&self.objects, &key, None).await?;
        if is_gone {
            done.removed += 1;
            done.removed_bytes += pointer.content.size;
        }
        Ok(is_gone)
    }

    /// Removes links to blobs that are gone. A client may have sent such a blob again: its pointer
    /// was then written before the client read the link, so the pointer is read after the link was
    /// condemned.
    async fn end_links(&self, gone: &HashSet<Digest>) -> Result<(), Error> {
        let objects = &self.objects;
        let mut entries = objects.list(keys::REPOSITORIES, None);
        while let Some(entry) = entries.try_next().await? {
            let Some((RepositoryFolder::Blobs, hex)) = RepositoryFolder::parse(&entry.key) else { continue };
            let Some(digest) = keys::digest(hex).filter(|blob| entry.size > 0 && gone.contains(blob)) else { continue };
            let Some(link) = condemn::<Link>(objects, &entry.key).await? else { continue };
            let pointer = Seen::<Data>::read(objects, &keys::pointer(&digest)).await?;
            if pointer.value.is_some() {
                rescue::<Link>(objects, &entry.key).await?;
            } else {
                link.replace(objects, &entry.key, None).await?;
            }
        }
        Ok(())
    }

    /// Removes the objects of uploads without recent requests.
    async fn expire_uploads(&self, options: &CollectOptions, done: &mut Collected) -> Result<(), Error> {
        let mut entries = self.objects.list(keys::UPLOADS, None);
        while let Some(entry) = entries.try_next().await? {
            if !options.is_older(entry.modified, options.upload_life) {
                continue;
            }
            let Some((id, name)) = entry.key.strip_prefix("uploads/").and_then(|rest| rest.split_once('/')) else {
                continue;
            };
            if name == "session" {
                done.uploads += u64::from(self.expire_upload(id, &entry.key).await?);
            } else if !self.objects.exists(&keys::session(id)).await? {
                // Its session was removed by a process that was killed after that.
                self.objects.delete(&entry.key).await?;
            }
        }
        Ok(())
    }

    async fn expire_upload(&self, id: &str, key: &str) -> Result<bool, Error> {
        let Some(Object { bytes, version, .. }) = self.objects.get(key).await? else { return Ok(false) };
        let session: Session = parse(key, &bytes)?;
        let keeps_data = match session.committing() {
            Some(digest) => {
                let pointer = Seen::<Data>::read(&self.objects, &keys::pointer(&digest)).await?;
                pointer.value.is_some_and(|value| value.content.data == session.data)
            }
            None => false,
        };
        let ended = Session { phase: Phase::Ended, nonce: keys::random(), ..session.clone() };
        if session.committing().is_none() && self.objects.swap(key, Some(&version), document(&ended)).await?.is_none() {
            // A request continues it after all.
            return Ok(false);
        }
        remove(&self.objects, id, &session, keeps_data).await.map(|()| true)
    }

    async fn expire_intents(&self, options: &CollectOptions) -> Result<(), Error> {
        let mut intents = self.objects.list(keys::INTENTS, None);
        while let Some(entry) = intents.try_next().await? {
            if options.is_older(entry.modified, options.upload_life) {
                self.objects.delete(&entry.key).await?;
            }
        }
        Ok(())
    }
}

/// The digest of a blob with data to which nothing refers.
fn unreferenced(roots: &Roots, entry: &Entry) -> Option<Digest> {
    let digest = keys::digest(keys::last(&entry.key)).filter(|_| entry.size > 0)?;
    (!roots.contains(&digest)).then_some(digest)
}
