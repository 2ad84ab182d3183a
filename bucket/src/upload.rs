//! An upload: bytes go into parts of `data/ID`, and the commit makes a pointer to it.
//!
//! ```text
//! write ──▶ buffer ──full──▶ part (one is sent while the next one fills; at the end, two)
//! pause: buffer ──▶ tail object, session    commit: last part, complete, pointer
//! ```
//! A commit copies nothing, so its duration does not depend on the size of the blob. Blobs smaller
//! than the first part are one object.
//!
//! The session changes by compare-and-swap. If two requests continue one upload on different
//! replicas, the one that saves its state last gets [`content::Error::Busy`]. Both may have sent a
//! part with the same number; if the wrong one stays, the storage refuses the commit, because the
//! parts of the session are named by their content.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use content::{Algorithm, Digest, Expected, Hasher, Ingest};
use futures_util::TryStreamExt;
use tokio::task::JoinHandle;

use crate::marked::{Data, document, parse, publish, rescue};
use crate::objects::{Objects, Version};
use crate::open_uploads::OpenUpload;
use crate::part_sizes::{MOST_PARTS, PartSizes};
use crate::session::{Phase, Session, Tail};
use crate::{Error, keys};

/// How long a commit may take from naming the digest in the session to the pointer. A collection
/// removes sessions that have not changed for longer.
const COMMIT_TIME: Duration = Duration::from_hours(1);
/// Time after which a request that sends parts stores the session again.
const REFRESH: Duration = Duration::from_mins(10);
/// Number of tails of an upload. Beyond it, they become one.
const MOST_TAILS: usize = 16;

/// An upload that a request works on.
#[derive(Debug)]
pub struct Upload {
    objects: Objects,
    sizes: PartSizes,
    open: OpenUpload,
    expected: Expected,
    /// The session as it is stored.
    session: Session,
    /// The version of the stored session; `None` if it is not stored yet.
    version: Option<Version>,
    /// When this request has stored the session.
    stored: Instant,
    hasher: Hasher,
    /// Number of bytes so far.
    offset: u64,
    /// The parts that were sent.
    parts: Vec<String>,
    /// Stored bytes behind the parts.
    tail: Vec<Tail>,
    /// Bytes behind parts and tail.
    buffer: Vec<Bytes>,
    /// Number of bytes in the buffer.
    buffered: u64,
    /// The parts that are being sent.
    sending: VecDeque<JoinHandle<Result<String, Error>>>,
    /// The offset at which the bytes are likely to end for now.
    end: Option<u64>,
}

impl Upload {
    /// Opens an upload. Without a stored session it is new. Returns `None` if it is being committed
    /// or removed.
    pub(crate) async fn open(
        objects: &Objects,
        sizes: PartSizes,
        open: OpenUpload,
        expected: Expected,
    ) -> Result<Option<Self>, Error> {
        let key = keys::session(open.id().as_str());
        let (session, version) = match objects.get(&key).await? {
            Some(object) => (parse::<Session>(&key, &object.bytes)?, Some(object.version)),
            None => (Session::new(), None),
        };
        if session.phase != Phase::Open {
            return Ok(None);
        }
        let hasher = session.hasher(&key)?;
        Ok(Some(Self {
            objects: objects.clone(),
            sizes,
            open,
            expected,
            version,
            stored: Instant::now(),
            hasher,
            offset: session.offset,
            parts: session.parts.clone(),
            tail: session.tail.clone(),
            session,
            buffer: Vec::new(),
            buffered: 0,
            sending: VecDeque::new(),
            end: None,
        }))
    }

    /// Whether the session is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.version.is_some()
    }

    fn id(&self) -> &str {
        self.open.id().as_str()
    }

    fn data_key(&self) -> String {
        keys::data(&self.session.data)
    }

    /// Replaces the stored session, if no other request has changed it.
    async fn store(&mut self, session: Session) -> Result<(), content::Error> {
        let session = Session { nonce: keys::random(), ..session };
        let key = keys::session(self.id());
        match self.objects.swap(&key, self.version.as_ref(), document(&session)).await? {
            Some(version) => {
                self.version = Some(version);
                self.stored = Instant::now();
                self.session = session;
                Ok(())
            }
            None => Err(content::Error::Busy(self.open.id().to_string())),
        }
    }

    /// Sends a part in the background, when fewer than `most` are being sent.
    async fn send_part(&mut self, pieces: Vec<Bytes>, most: usize) -> Result<(), content::Error> {
        self.wait_for_parts(most - 1).await?;
        let number = self.next_part();
        if number >= MOST_PARTS {
            let most = self.sizes.most() >> 30;
            return Err(content::Error::Other(format!("a blob on this storage has at most {most} GiB").into()));
        }
        let upload = match &self.session.multipart {
            Some(upload) => upload.clone(),
            None => self.begin_parts().await?,
        };
        if self.stored.elapsed() > REFRESH {
            // A collection must see that the upload goes on.
            self.store(self.session.clone()).await?;
        }
        let (objects, key) = (self.objects.clone(), self.data_key());
        self.sending.push_back(tokio::spawn(async move { objects.put_part(&key, &upload, number, pieces).await }));
        Ok(())
    }

    /// Begins the multipart upload. The session names it before it has parts, so that a collection
    /// can discard them.
    async fn begin_parts(&mut self) -> Result<String, content::Error> {
        let upload = self.objects.begin_parts(&self.data_key()).await?;
        let session = Session { multipart: Some(upload.clone()), ..self.session.clone() };
        self.store(session).await.map(|()| upload)
    }

    /// The number of the part that is sent next.
    fn next_part(&self) -> usize {
        self.parts.len() + self.sending.len()
    }

    /// Waits until no more than `most` parts are being sent; after a failure, until all have ended,
    /// so that none replaces a part of the next attempt.
    async fn wait_for_parts(&mut self, most: usize) -> Result<(), content::Error> {
        let mut failed = None;
        while (self.sending.len() > most || failed.is_some())
            && let Some(sending) = self.sending.pop_front()
        {
            match sending.await.map_err(|e| content::Error::Other(Box::new(e))).and_then(|sent| Ok(sent?)) {
                Ok(part) if failed.is_none() => self.parts.push(part),
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Number of bytes behind the parts.
    fn rest(&self) -> u64 {
        self.tail.iter().map(|tail| tail.size).sum::<u64>() + self.buffered
    }

    /// Takes the stored tail and the buffer.
    async fn take_rest(&mut self) -> Result<Vec<Bytes>, content::Error> {
        let mut pieces = Vec::new();
        for tail in std::mem::take(&mut self.tail) {
            pieces.push(self.objects.range(&keys::tail(self.id(), &tail.name), 0..tail.size).await?);
        }
        self.buffered = 0;
        pieces.append(&mut self.buffer);
        Ok(pieces)
    }

    /// Makes the data complete and visible under `digest`, unless the blob exists by now. Returns
    /// where the blob is.
    async fn publish(&mut self, digest: &Digest) -> Result<Data, content::Error> {
        let begin = Instant::now();
        let pointer = keys::pointer(digest);
        // The last part is sent during the next requests.
        let rest = self.send_rest().await?;
        let phase = Phase::Committing { digest: digest.to_string() };
        let (objects, session) = (self.objects.clone(), Session { phase, ..self.session.clone() });
        let (existing, stored) = tokio::join!(rescue::<Data>(&objects, &pointer), self.store(session));
        stored?;
        // The bytes of another algorithm are not checked yet.
        let existing = existing.map(|found| found.filter(|_| digest.algorithm() == Algorithm::Sha256));
        if let Ok(Some((data, _))) = existing {
            return Ok(data);
        }
        let sent = self.wait_for_parts(0).await;
        if let Err(error) = existing.map_err(content::Error::from).and(sent) {
            // The data does not exist yet, so the client can repeat the request.
            self.store(Session { phase: Phase::Open, ..self.session.clone() }).await?;
            return Err(error);
        }
        self.make_data(rest).await?;
        self.check_other_algorithm(digest).await?;
        if begin.elapsed() > COMMIT_TIME {
            return Err(content::Error::Other("storing the blob took too long; send it again".into()));
        }
        let own = Data { data: self.session.data.clone(), size: self.offset };
        Ok(publish(&self.objects, &pointer, own).await?.0)
    }

    /// Begins to send the last part. Returns the bytes of an upload without parts.
    async fn send_rest(&mut self) -> Result<Vec<Bytes>, content::Error> {
        let rest = self.take_rest().await?;
        if self.session.multipart.is_none() {
            return Ok(rest);
        }
        if !rest.is_empty() {
            self.send_part(rest, 2).await?;
        }
        Ok(Vec::new())
    }

    /// Makes the object of the parts, or of `whole`. After a failure the upload cannot be resumed:
    /// the request may still take effect, and would then replace the bytes of a later one.
    async fn make_data(&self, whole: Vec<Bytes>) -> Result<(), Error> {
        let key = self.data_key();
        let made = match &self.session.multipart {
            Some(upload) => self.objects.complete_parts(&key, upload, &self.parts).await,
            None => self.objects.put(&key, whole).await,
        };
        match made {
            // If the response to the first attempt was lost, the storage refuses the second one.
            Err(error) if !self.objects.exists(&key).await? => Err(error),
            _ => Ok(()),
        }
    }

    /// Hashes the stored data, if its digest is not a SHA-256.
    async fn check_other_algorithm(&self, digest: &Digest) -> Result<(), content::Error> {
        if digest.algorithm() == Algorithm::Sha256 {
            return Ok(());
        }
        let mut hasher = Hasher::new(digest.algorithm());
        let mut bytes = self.objects.stream(&self.data_key(), 0..self.offset).await?;
        while let Some(piece) = bytes.try_next().await? {
            hasher.update(&piece);
        }
        self.expected.check(hasher.finish(), self.offset)
    }

    /// Removes everything that the upload has stored, except for data that `kept` names.
    async fn clean(mut self, kept: Option<&Data>) -> Result<(), content::Error> {
        for sending in std::mem::take(&mut self.sending) {
            // Its part is discarded.
            let _ = sending.await;
        }
        if !self.is_stored() {
            return Ok(());
        }
        if self.session.phase == Phase::Open {
            // Otherwise another request could commit it in between.
            self.store(Session { phase: Phase::Ended, ..self.session.clone() }).await?;
        }
        if kept.is_some_and(|data| data.data == self.session.data) {
            return Ok(self.remove_session().await?);
        }
        Ok(remove(&self.objects, self.id(), &self.session, false).await?)
    }

    /// Removes the session and its tails after a commit.
    async fn remove_session(&self) -> Result<(), Error> {
        for tail in &self.session.tail {
            self.objects.delete(&keys::tail(self.id(), &tail.name)).await?;
        }
        self.objects.delete(&keys::session(self.id())).await
    }

    /// Makes the blob visible. After a mismatch, nothing of the upload is left.
    pub(crate) async fn complete(mut self) -> Result<Completed, content::Error> {
        let named = self.expected.digest().filter(|digest| digest.algorithm() != Algorithm::Sha256);
        let digest = named.unwrap_or_else(|| self.hasher.clone().finish());
        let done = match self.expected.check(digest, self.offset) {
            Ok(()) => self.publish(&digest).await,
            Err(mismatch) => Err(mismatch),
        };
        match done {
            Ok(data) => Ok(Completed { upload: self, digest, data }),
            Err(wrong @ (content::Error::WrongDigest { .. } | content::Error::WrongSize { .. })) => {
                self.clean_or_warn(None).await;
                Err(wrong)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what is left of an upload whose blob is there, or refused. If that fails, a
    /// collection does it.
    async fn clean_or_warn(self, kept: Option<&Data>) {
        if let Err(error) = self.clean(kept).await {
            tracing::warn!("the objects of an upload stay for now: {error}");
        }
    }
}

/// A blob that is visible, and its upload, of which objects are left.
#[derive(Debug)]
pub(crate) struct Completed {
    upload: Upload,
    pub(crate) digest: Digest,
    pub(crate) data: Data,
}

impl Completed {
    /// Removes what is left of the upload.
    pub(crate) async fn clean(self) {
        self.upload.clean_or_warn(Some(&self.data)).await;
    }
}

/// Removes the objects of an upload; its data stays if a pointer names it.
pub(crate) async fn remove(objects: &Objects, id: &str, session: &Session, keeps_data: bool) -> Result<(), Error> {
    let data = keys::data(&session.data);
    if let Some(upload) = &session.multipart {
        objects.abort_parts(&data, upload).await?;
    }
    if !keeps_data {
        objects.delete(&data).await?;
    }
    let mut tails = objects.list(&format!("{}/{id}", keys::UPLOADS), None);
    let own = keys::session(id);
    while let Some(entry) = tails.try_next().await? {
        if entry.key != own {
            objects.delete(&entry.key).await?;
        }
    }
    objects.delete(&own).await
}

impl Ingest for Upload {
    fn offset(&self) -> u64 {
        self.offset
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), content::Error> {
        let actual = self.offset + bytes.len() as u64;
        if let Some(expected) = self.expected.size().filter(|expected| actual > *expected) {
            return Err(content::Error::WrongSize { expected, actual });
        }
        self.hasher.update(&bytes);
        self.offset = actual;
        self.buffered += bytes.len() as u64;
        self.buffer.push(bytes);
        loop {
            let left = self.end.and_then(|end| end.checked_sub(self.offset - self.rest()));
            let size = self.sizes.next(self.next_part(), left);
            if self.rest() < size {
                return Ok(());
            }
            let mut rest = self.take_rest().await?;
            let part = split(&mut rest, size);
            self.buffered = rest.iter().map(|piece| piece.len() as u64).sum();
            self.buffer = rest;
            self.send_part(part, 1).await?;
        }
    }

    fn plan_for(&mut self, bytes: u64) {
        self.end = Some(self.offset.saturating_add(bytes));
    }

    async fn expect(&mut self, expected: Expected) -> Result<(), content::Error> {
        self.expected = expected;
        Ok(())
    }

    /// Stores the state, so that any replica can resume.
    async fn pause(mut self) -> Result<Option<Self>, content::Error> {
        self.wait_for_parts(0).await?;
        if self.is_stored() && self.offset == self.session.offset {
            return Ok(None);
        }
        if self.tail.len() >= MOST_TAILS {
            let pieces = self.take_rest().await?;
            self.buffered = pieces.iter().map(|piece| piece.len() as u64).sum();
            self.buffer = pieces;
        }
        if self.buffered > 0 {
            let tail = Tail { name: keys::random(), size: self.buffered };
            self.objects.put(&keys::tail(self.id(), &tail.name), std::mem::take(&mut self.buffer)).await?;
            self.tail.push(tail);
        }
        let mut session =
            Session { parts: self.parts.clone(), offset: self.offset, tail: self.tail.clone(), ..self.session.clone() };
        session.set_hash(&self.hasher);
        let before = std::mem::take(&mut self.session.tail);
        self.store(session).await?;
        for old in before.iter().filter(|old| !self.tail.contains(old)) {
            self.objects.delete(&keys::tail(self.id(), &old.name)).await?;
        }
        Ok(None)
    }

    async fn commit(self) -> Result<(Digest, u64), content::Error> {
        let done = self.complete().await?;
        let blob = (done.digest, done.data.size);
        done.clean().await;
        Ok(blob)
    }

    async fn cancel(self) -> Result<(), content::Error> {
        self.clean(None).await
    }
}

/// Takes the first `size` bytes.
fn split(pieces: &mut Vec<Bytes>, size: u64) -> Vec<Bytes> {
    let mut missing = size as usize;
    let mut taken = Vec::new();
    let mut rest = Vec::new();
    for mut piece in std::mem::take(pieces) {
        let own = piece.split_to(missing.min(piece.len()));
        missing -= own.len();
        if !own.is_empty() {
            taken.push(own);
        }
        if !piece.is_empty() {
            rest.push(piece);
        }
    }
    *pieces = rest;
    taken
}
