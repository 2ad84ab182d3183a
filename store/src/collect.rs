//! Garbage collection: mark from tags, their kept versions, links and leases, sweep the rest.
//!
//! It works beside everybody else: what somebody adds or reads meanwhile is put off (`gate`), and so is what something that
//! cannot be read may lead to. Files go first; what the index knew of them goes afterwards.

use std::fs::DirEntry;
use std::path::Path;
use std::time::SystemTime;

use content::Digest;

use crate::gate::State;
use crate::mark::{Children, LeadsTo, Marked, Obstacle};
use crate::promises::{Places, Promised};
use crate::sync::PoisonError;
use crate::{Error, Store, files};

/// The most reasons that are told for what was put off.
const MOST_REASONS: usize = 10;

/// What a collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// How many blobs were deleted.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What nothing seems to need and was left alone all the same; `None` where there is no such thing.
    pub put_off: Option<PutOff>,
    /// What is only kept until leases end.
    pub leased: Leased,
}

/// Blobs that nothing but leases and promises keep: uploads, and what transfers that broke off have brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// How many.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the last of those ends.
    pub until: Option<SystemTime>,
}

/// What a collection left alone for now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOff {
    /// How many blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether somebody is adding or reading some of them.
    pub in_use: bool,
    /// What could not be read, so that it may lead to them, or could not be removed.
    pub reasons: Vec<String>,
}

/// What a collection would delete, and what it would put off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collectable {
    /// With their sizes in bytes.
    pub blobs: Vec<(Digest, u64)>,
    /// As [`Collected::put_off`].
    pub put_off: Option<PutOff>,
    /// As [`Collected::leased`].
    pub leased: Leased,
}

/// Adds up what is left alone.
#[derive(Default)]
struct Left {
    blobs: u64,
    bytes: u64,
    used: bool,
    reasons: Vec<String>,
    untold: usize,
}

impl Left {
    fn add(&mut self, size: u64, used: bool) {
        (self.blobs, self.bytes) = (self.blobs + 1, self.bytes + size);
        self.used |= used;
    }

    fn because(&mut self, reason: &Error) {
        if self.reasons.len() < MOST_REASONS {
            self.reasons.push(reason.to_string());
        } else {
            self.untold += 1;
        }
    }

    fn put_off(mut self) -> Option<PutOff> {
        if self.untold > 0 {
            self.reasons.push(format!("and {} more", self.untold));
        }
        let Self { blobs, bytes, used: in_use, reasons, .. } = self;
        (in_use || !reasons.is_empty()).then_some(PutOff { blobs, bytes, in_use, reasons })
    }
}

/// What becomes of a blob.
enum Fate {
    Stays,
    /// Somebody may need it; `used` where that is who adds or reads.
    PutOff {
        used: bool,
    },
    Goes,
}

impl Store {
    /// Deletes every blob that no tag, link or lease leads to, that is promised to nobody, and that nobody adds or reads now.
    /// `children` says what a document refers to. Waits for a collection that is under way.
    ///
    /// What cannot be read keeps what it may lead to, and what cannot be removed stays: [`Collected::put_off`] says so.
    pub fn collect(&self, now: SystemTime, children: impl Fn(&[u8]) -> Result<Children, String>) -> Collected {
        let _one = self.0.collection.lock().unwrap_or_else(PoisonError::into_inner);
        let _collecting = self.0.gate.begin_collection();
        self.0.promises.expire(now);
        let mut marked = self.mark(now, &children);
        if let Err(error) = self.settle_names() {
            // A name that was taken away, and may be back after a power cut, needs all that it led to.
            marked.obstacles.push(Obstacle { error, leads_to: LeadsTo::Anything });
        }
        let mut left = Left::default();
        for path in &marked.ended_leases {
            self.remove_ended_lease(path, now).unwrap_or_else(|error| left.because(&error));
        }
        for link in &marked.expired_links {
            self.remove_expired_link(link, now).unwrap_or_else(|error| left.because(&error));
        }
        let mut collected = Collected::default();
        for digest in self.candidates(&marked, &mut left) {
            let size = match self.remove_unneeded(&digest, &marked, now, &mut left) {
                Ok(Some(size)) => size,
                Ok(None) => continue,
                Err(error) => {
                    left.because(&error);
                    continue;
                }
            };
            (collected.blobs, collected.bytes) = (collected.blobs + 1, collected.bytes + size);
        }
        Collected { put_off: left.put_off(), leased: self.leased(&marked), ..collected }
    }

    /// What a collection would do now. It changes nothing, and may be out of date as soon as somebody adds content.
    pub fn collectable(&self, now: SystemTime, children: impl Fn(&[u8]) -> Result<Children, String>) -> Collectable {
        let marked = self.mark(now, &children);
        let (mut blobs, mut left) = (Vec::new(), Left::default());
        for digest in self.candidates(&marked, &mut left) {
            let Ok(Some(size)) = self.look(&digest) else { continue };
            match fate(&digest, &marked, &self.0.promises.lock(), &self.0.gate.lock(), now) {
                Fate::Stays => {}
                Fate::PutOff { used } => left.add(size, used),
                Fate::Goes => blobs.push((digest, size)),
            }
        }
        Collectable { blobs, put_off: left.put_off(), leased: self.leased(&marked) }
    }

    /// What only leases keep, as far as it is here.
    fn leased(&self, marked: &Marked) -> Leased {
        let mut ends = marked.leased.clone();
        for (digest, places) in self.0.promises.lock().iter() {
            let Some(end) = places.values().max() else { continue };
            if !marked.reachable.contains(digest) || ends.contains_key(digest) {
                let latest = ends.entry(*digest).or_insert(*end);
                *latest = (*end).max(*latest);
            }
        }
        let mut leased = Leased::default();
        for (digest, end) in ends {
            let Ok(Some(size)) = self.look(&digest) else { continue };
            (leased.blobs, leased.bytes) = (leased.blobs + 1, leased.bytes + size);
            leased.until = leased.until.max(Some(end));
        }
        leased
    }

    /// Every blob that is not reachable; notes what could not be read.
    fn candidates(&self, marked: &Marked, left: &mut Left) -> Vec<Digest> {
        let (mut digests, unreadable) = self.blob_digests();
        for error in marked.obstacles.iter().map(|obstacle| &obstacle.error).chain(&unreadable) {
            left.because(error);
        }
        digests.retain(|digest| !marked.reachable.contains(digest));
        digests
    }

    /// Removes the file of a blob, where nobody relies on it; its size in bytes then.
    fn remove_unneeded(
        &self,
        digest: &Digest,
        marked: &Marked,
        now: SystemTime,
        left: &mut Left,
    ) -> Result<Option<u64>, Error> {
        let Some(size) = self.look(digest)? else { return Ok(None) };
        // Held until the file is gone, so that nobody comes to rely on it in between.
        let (promises, gate) = (self.0.promises.lock(), self.0.gate.lock());
        match fate(digest, marked, &promises, &gate, now) {
            Fate::Stays => Ok(None),
            Fate::PutOff { used } => {
                left.add(size, used);
                Ok(None)
            }
            Fate::Goes => {
                let removed = files::remove(&self.path(digest)).inspect_err(|_| left.add(size, false))?;
                // The file first: what the index knows of a blob that is gone does no harm. Who adds it again waits, and describes it anew.
                self.0.index.remove_blob(digest);
                Ok(removed.then_some(size))
            }
        }
    }

    /// The digests of all blobs that are on the disk, and which folders of them cannot be read.
    pub(crate) fn blob_digests(&self) -> (Vec<Digest>, Vec<Error>) {
        let (mut digests, mut unreadable) = (Vec::new(), Vec::new());
        let mut listed = |folder: &Path| match files::entries(folder) {
            Ok(entries) => entries,
            Err(error) => {
                unreadable.push(error);
                Vec::new()
            }
        };
        for algorithm in folders(listed(&self.0.layout.blobs())) {
            for shelf in folders(listed(&algorithm.path())) {
                for blob in listed(&shelf.path()) {
                    let name = format!("{}:{}", algorithm.file_name().display(), blob.file_name().display());
                    digests.extend(name.parse::<Digest>());
                }
            }
        }
        (digests, unreadable)
    }
}

/// Those that are folders, or may be: who lists them is told.
fn folders(entries: Vec<DirEntry>) -> impl Iterator<Item = DirEntry> {
    entries.into_iter().filter(|entry| files::is_folder(entry).unwrap_or(true))
}

fn fate(digest: &Digest, marked: &Marked, promises: &Promised, gate: &State, now: SystemTime) -> Fate {
    let promised = |places: &Places| places.values().any(|until| *until > now);
    if marked.reachable.contains(digest) || promises.get(digest).is_some_and(promised) {
        return Fate::Stays;
    }
    let unknown = marked.obstacles.iter().any(|obstacle| obstacle.leads_to == LeadsTo::Anything);
    match gate.keeps(digest) {
        used if used || unknown => Fate::PutOff { used },
        _ => Fate::Goes,
    }
}
