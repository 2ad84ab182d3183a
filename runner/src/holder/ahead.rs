//! Reads files of a model into memory before they are copied to a device, in the order of the
//! copies.
//!
//! A mapping is read page by page, by the thread that touches it. Without reading ahead, the times
//! of the disk, of page faults and of the copy would add up. Reading stays at most [`AHEAD`] bytes
//! before the copies, so that pages are still in memory when they are copied.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use memmap2::Advice;

use crate::mapped::Blob;

/// Greatest distance in bytes between reading and copying.
pub(super) const AHEAD: u64 = 1 << 30;
/// Number of bytes that a thread reads at a time.
const PIECE: usize = 16 << 20;
/// Greatest number of reading threads; disks need several requests in flight.
const MOST_THREADS: usize = 4;

/// A part of a blob that will be copied.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    /// Index of the blob in the session.
    pub(super) blob: usize,
    pub(super) bytes: Arc<Blob>,
    pub(super) offset: usize,
    pub(super) size: usize,
}

/// Threads that read ahead. They end when everything is read, or when this is dropped.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    /// Parts by blob and offset: position of the first byte in the read order, and size.
    places: BTreeMap<(usize, usize), (u64, usize)>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pieces: Vec<UpcomingPart>,
    ahead: u64,
    progress: Mutex<ReadProgress>,
    moved: Condvar,
}

#[derive(Debug)]
struct UpcomingPart {
    bytes: Arc<Blob>,
    offset: usize,
    size: usize,
    /// Position of the first byte in the read order.
    at: u64,
}

#[derive(Debug, Default)]
struct ReadProgress {
    /// Index of the next piece to read.
    next: usize,
    /// Position up to which bytes have been copied, or are not needed any more.
    copied: u64,
    is_over: bool,
}

impl Ahead {
    /// Starts reading, at most `ahead` bytes before the part that was last [copied](Self::copies).
    pub(super) fn begin(parts: &[Coming], ahead: u64) -> Self {
        let (mut pieces, mut places, mut at) = (Vec::new(), BTreeMap::new(), 0);
        for Coming { blob, bytes, offset, size } in parts {
            places.insert((*blob, *offset), (at, *size));
            for begin in (0..*size).step_by(PIECE) {
                let size = PIECE.min(size - begin);
                pieces.push(UpcomingPart { bytes: bytes.clone(), offset: offset + begin, size, at });
                at += size as u64;
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(pieces.len());
        let shared = Arc::new(Shared { pieces, ahead, progress: Mutex::default(), moved: Condvar::new() });
        let start = |_| {
            let shared = shared.clone();
            let thread = Builder::new().name("ahead".to_owned()).spawn(move || while shared.step() {});
            // Without the thread, the copying thread reads the pages itself.
            thread.inspect_err(|error| tracing::warn!(%error, "cannot start a read-ahead thread; weights are read during the copy")).ok()
        };
        let threads = (0..threads).filter_map(start).collect();
        Self { shared, places, threads }
    }

    /// Notes that an array is about to be copied.
    pub(super) fn copies(&self, blob: usize, offset: usize) {
        let before = self.places.range((Unbounded, Included((blob, offset)))).next_back();
        // Arrays that were not announced are ignored.
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
            // A thread that panics reports it itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, ReadProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next piece to be due, and reads it. Returns `false` if none is left.
    fn step(&self) -> bool {
        let waits = |progress: &mut ReadProgress| {
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

impl UpcomingPart {
    fn read(&self) {
        let Blob::Mapped(bytes) = &*self.bytes else { return };
        // Linux 5.14 and later read and map pages in one call; elsewhere the advice only starts
        // reading.
        if bytes.advise_range(Advice::PopulateRead, self.offset, self.size).is_err() {
            // Errors show up again when the pages are copied.
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
        // In a different order than the blobs, two parts each.
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
        // An offset within a part counts as far as it goes; earlier offsets change nothing.
        ahead.copies(2, 0);
        ahead.copies(0, SIZE / 2);
        wait_for(5);
        assert_eq!(next(), 5);
        ahead.copies(1, 0);
        wait_for(6);
        drop(ahead);
        // Dropping does not wait for copies that never come.
        drop(Ahead::begin(&parts, 0));
    }
}
