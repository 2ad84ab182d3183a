//! Looking for damage: blobs that are not what their names say, and names that cannot be read.
//!
//! Nothing here deletes. A damaged blob can be moved to `damaged/<hex>`, which readers do not look at: then it is missing
//! like any other and can be fetched again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use content::{Digest, Hasher};

use crate::layout::Layout;
use crate::{Error, Store, files, history, leases, links, names, tags};

/// The kind of note with the second at which a blob was last found good.
const NOTE: &str = "verified";
/// How much is read at a time, in bytes.
const PIECE: usize = 1 << 18;

/// What a blob turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// What its name says.
    Good,
    /// Not there.
    Missing,
    /// Shorter or longer than it should be.
    WrongSize {
        /// Its length in bytes.
        actual: u64,
    },
    /// Other bytes.
    WrongBytes {
        /// What they hash to.
        actual: Digest,
    },
}

impl Store {
    /// Reads a blob from the disk and hashes it. `size` is what it should have, where that is known; `on_bytes` is told
    /// how many bytes were read since it was last told, and says whether to go on.
    ///
    /// # Errors
    /// [`Error::Io`] where the disk refuses to give the bytes, and where `on_bytes` said no.
    pub fn verify(
        &self,
        digest: &Digest,
        size: Option<u64>,
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Verified, Error> {
        let path = self.path(digest);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Verified::Missing),
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let actual = file.metadata().map_err(|e| Error::io("look at", &path, e))?.len();
        if size.is_some_and(|size| size != actual) {
            return Ok(Verified::WrongSize { actual });
        }
        let mut hasher = Hasher::new(digest.algorithm());
        let mut buffer = vec![0; PIECE];
        loop {
            let n = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::io("read", &path, e)),
            };
            hasher.update(&buffer[..n]);
            if !on_bytes(n as u64) {
                return Err(Error::io("go on reading", &path, io::ErrorKind::Interrupted));
            }
        }
        let actual = hasher.finish();
        Ok(if actual == *digest { Verified::Good } else { Verified::WrongBytes { actual } })
    }

    /// Remembers that a blob was found good.
    pub fn record_verified(&self, digest: &Digest, now: SystemTime) {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        self.set_note(NOTE, digest, &second.to_be_bytes());
    }

    /// Forgets that a blob was ever found good, because now it was not.
    pub fn forget_verified(&self, digest: &Digest) {
        self.0.index.remove_note(NOTE, digest);
    }

    /// When a blob was last found good; `None` where that is not known.
    pub fn last_verified(&self, digest: &Digest) -> Option<SystemTime> {
        let second = self.note(NOTE, digest).and_then(|note| <[u8; 8]>::try_from(note).ok()).map(u64::from_be_bytes);
        second.and_then(|second| UNIX_EPOCH.checked_add(Duration::from_secs(second)))
    }

    /// Takes a damaged blob out of sight; says whether it was there. An earlier one of the same name is replaced.
    pub fn set_aside(&self, digest: &Digest) -> Result<bool, Error> {
        self.ensure_writable()?;
        let path = self.path(digest);
        files::create_folder(&self.0.layout.damaged())?;
        let aside = self.0.layout.damaged().join(digest.hex());
        // It was made of the damaged bytes, perhaps. First, so that a crash leaves nothing of it beside a blob that is fetched again; and
        // once more, where somebody was about to make it. What a document refers to is known by its digest, which stays right.
        let forget = || {
            self.0.index.remove_notes(digest);
            self.forget_derived(digest)
        };
        forget()?;
        let moved = match fs::rename(&path, &aside) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(Error::io("set aside", &path, e)),
        };
        forget()?;
        if moved && let Some(folder) = path.parent() {
            // It is to be somewhere at any time.
            files::sync_folder(&self.0.layout.damaged())?;
            self.0.placing.sync(folder)?;
        }
        Ok(moved)
    }

    /// Removes what [`Store::set_aside`] kept of a blob; says whether there was something.
    pub fn discard_damaged(&self, digest: &Digest) -> Result<bool, Error> {
        self.ensure_writable()?;
        files::remove(&self.0.layout.damaged().join(digest.hex()))
    }

    /// What is wrong with names. Each may make a collection leave more alone than it would.
    pub fn damaged_names(&self, now: SystemTime) -> Vec<Error> {
        damaged_names(&self.0.layout, now)
    }

    /// The same of the store at `home`, whoever has it open. Nothing is touched.
    pub fn damaged_names_at(home: &Path, now: SystemTime) -> Vec<Error> {
        damaged_names(&Layout::of(home), now)
    }
}

fn damaged_names(layout: &Layout, now: SystemTime) -> Vec<Error> {
    let tags = tags::walk(&layout.tags());
    let mut damaged: Vec<Error> = tags.damaged.into_iter().map(|(_, error)| error).chain(tags.unreadable).collect();
    let histories = names::walk(&layout.histories());
    damaged
        .extend(histories.named.iter().filter_map(|file| file.check().and_then(|()| history::read(&file.path)).err()));
    damaged.extend(histories.unreadable);
    damaged.extend(names::walk(&layout.pins()).unreadable);
    damaged.extend(links::walk(&layout.links()).unreadable.into_iter().map(|(_, error)| error));
    damaged.extend(leases::walk(&layout.leases(), now).damaged);
    damaged
}
