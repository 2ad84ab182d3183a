//! Brings files of a model into memory before they are copied to a device, in the order in which they will be.
//!
//! A mapping is read page by page by whoever touches it, and who copies has the device's lock meanwhile: without this a load would take the
//! disk's time, that of mapping pages, and the copy's, one after the other. Never further ahead than [`AHEAD`], so that what has been read is
//! still in memory when its turn comes.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use memmap2::Advice;

use crate::mapped::Blob;

/// Bytes that are read before they are copied, at most.
pub(super) const AHEAD: u64 = 1 << 30;
/// Bytes that a thread reads at a time.
const PIECE: usize = 16 << 20;
/// Threads that read, at most: a disk wants several questions at a time.
const MOST_THREADS: usize = 4;

/// A part of a blob that is going to be copied.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    /// Its place among those of the session.
    pub(super) blob: usize,
    pub(super) bytes: Arc<Blob>,
    pub(super) offset: usize,
    pub(super) size: usize,
}

/// Threads that read. They end when all is read, or with this.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    /// Parts by blob and offset: their first byte among all, and how many they are.
    places: BTreeMap<(usize, usize), (u64, usize)>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pieces: Vec<Piece>,
    ahead: u64,
    progress: Mutex<Progress>,
    moved: Condvar,
}

#[derive(Debug)]
struct Piece {
    bytes: Arc<Blob>,
    offset: usize,
    size: usize,
    /// Its first byte among all.
    at: u64,
}

#[derive(Debug, Default)]
struct Progress {
    /// The next piece to be read.
    next: usize,
    /// Bytes that have been copied, or are no more of use.
    copied: u64,
    is_over: bool,
}

impl Ahead {
    /// Begins, and never goes further than `ahead` bytes before what was [copied](Self::copies).
    pub(super) fn begin(parts: &[Coming], ahead: u64) -> Self {
        let (mut pieces, mut places, mut at) = (Vec::new(), BTreeMap::new(), 0);
        for Coming { blob, bytes, offset, size } in parts {
            places.insert((*blob, *offset), (at, *size));
            for begin in (0..*size).step_by(PIECE) {
                let size = PIECE.min(size - begin);
                pieces.push(Piece { bytes: bytes.clone(), offset: offset + begin, size, at });
                at += size as u64;
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(pieces.len());
        let shared = Arc::new(Shared { pieces, ahead, progress: Mutex::default(), moved: Condvar::new() });
        let start = |_| {
            let shared = shared.clone();
            let thread = Builder::new().name("ahead".to_owned()).spawn(move || while shared.step() {});
            // Then whoever copies reads by himself.
            thread.inspect_err(|error| tracing::warn!(%error, "weights are not read ahead")).ok()
        };
        let threads = (0..threads).filter_map(start).collect();
        Self { shared, places, threads }
    }

    /// An array is going to be copied now.
    pub(super) fn copies(&self, blob: usize, offset: usize) {
        let before = self.places.range((Unbounded, Included((blob, offset)))).next_back();
        // What nobody has announced is no part of it.
        if let Some(((found, first), (at, size))) = before
            && *found == blob
            && offset - first < *size
        {
            let mut progress = self.shared.progress();
            progress.copied = progress.copied.max(at + (offset - first) as u64);
            self.shared.moved.notify_all();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.progress().is_over = true;
        self.shared.moved.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in it is written by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a piece when its turn comes; `false` where there is none any more.
    fn step(&self) -> bool {
        let waits = |progress: &mut Progress| {
            let next = self.pieces.get(progress.next);
            !progress.is_over && next.is_some_and(|piece| piece.at >= progress.copied.saturating_add(self.ahead))
        };
        let mut progress = self.moved.wait_while(self.progress(), waits).unwrap_or_else(PoisonError::into_inner);
        let Some(piece) = self.pieces.get(progress.next).filter(|_| !progress.is_over) else { return false };
        progress.next += 1;
        let is_late = piece.at + piece.size as u64 <= progress.copied;
        drop(progress);
        if !is_late {
            piece.read();
        }
        true
    }
}

impl Piece {
    fn read(&self) {
        let Blob::Mapped(bytes) = &*self.bytes else { return };
        // Pages are read and mapped at once, where the system can do so (Linux 5.14); else it is only told what will be wanted.
        if bytes.advise_range(Advice::PopulateRead, self.offset, self.size).is_err() {
            // Who copies meets what is wrong.
            let _ = bytes.advise_range(Advice::WillNeed, self.offset, self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::Blobs;

    #[test]
    fn it_is_ahead_of_the_copies_and_not_too_far() {
        const SIZE: usize = 1 << 16;
        let folder = tempfile::tempdir().expect("a folder");
        let paths: Vec<_> = (0..3).map(|name| folder.path().join(name.to_string())).collect();
        for path in &paths {
            std::fs::write(path, vec![7; SIZE]).expect("a file");
        }
        let blobs = Blobs::of_files(&paths).expect("they are mapped");
        // In another order than that of the blobs, each in two parts.
        let parts: Vec<Coming> = [2, 0, 1]
            .into_iter()
            .flat_map(|blob| [(blob, 0), (blob, SIZE / 2)])
            .map(|(blob, offset)| Coming {
                blob,
                bytes: blobs.get(blob).expect("a blob").clone(),
                offset,
                size: SIZE / 2,
            })
            .collect();
        let ahead = Ahead::begin(&parts, SIZE as u64);
        let wait_for = |count: usize| {
            while ahead.shared.progress().next < count {
                std::thread::yield_now();
            }
        };
        let next = || ahead.shared.progress().next;
        wait_for(2);
        ahead.copies(9, 0);
        ahead.copies(2, 0);
        assert_eq!(next(), 2, "as far ahead as it may be");
        ahead.copies(2, SIZE / 2 + 10);
        wait_for(3);
        // What lies behind the beginning of a part counts by the part; going back changes nothing.
        ahead.copies(2, 0);
        ahead.copies(0, SIZE / 2);
        wait_for(5);
        assert_eq!(next(), 5);
        ahead.copies(1, 0);
        wait_for(6);
        drop(ahead);
        // Nobody waits for copies that never come.
        drop(Ahead::begin(&parts, 0));
    }
}
