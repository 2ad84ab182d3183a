//! A cache of windows of remote files: the last few are kept, for all files of one pull together. A
//! window that several threads need at the same time is fetched once. No lock is held during a
//! fetch.
//!
//! States of a window: absent → loading → ready → absent again, when it is the least recently used
//! one.

use std::sync::Arc;
#[cfg(not(feature = "schedules"))]
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
// The same locks from shuttle, which tests many orders of threads.
#[cfg(feature = "schedules")]
use shuttle::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Windows that are kept for each core. An import has two workers for each core, and each moves
/// through its file.
const WINDOWS_PER_CORE: usize = 4;

/// The number of a file, and the number of the window in it.
pub(super) type WindowKey = (u64, u64);

/// The windows of all files of a pull. Their number limits the memory.
pub struct Windows {
    /// The most recently used window is last; `None` while it loads.
    slots: Mutex<Vec<(WindowKey, Option<Bytes>)>>,
    changed: Condvar,
    capacity: usize,
}

impl Windows {
    /// Creates a cache that suits the number of workers on this machine.
    pub fn for_workers() -> Arc<Self> {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from) * WINDOWS_PER_CORE)
    }

    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { slots: Mutex::default(), changed: Condvar::new(), capacity })
    }

    fn slots(&self) -> MutexGuard<'_, Vec<(WindowKey, Option<Bytes>)>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the window, or `None` if the caller must fetch it. Waits while another thread
    /// fetches it.
    pub(super) fn claim(&self, key: WindowKey) -> Option<Bytes> {
        let mut slots = self.slots();
        loop {
            let Some(position) = slots.iter().position(|(own, _)| *own == key) else {
                slots.push((key, None));
                return None;
            };
            if slots[position].1.is_some() {
                let slot = slots.remove(position);
                let bytes = slot.1.clone();
                slots.push(slot);
                return bytes;
            }
            slots = self.changed.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Number of windows that are kept or loading.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.slots().len()
    }

    /// Ends the loading of a window, with its bytes or without.
    fn end(&self, key: WindowKey, bytes: Option<Bytes>) {
        let mut slots = self.slots();
        slots.retain(|(own, _)| *own != key);
        if bytes.is_some() {
            slots.push((key, bytes));
            let ready = slots.iter().filter(|(_, bytes)| bytes.is_some()).count();
            if ready > self.capacity
                && let Some(oldest) = slots.iter().position(|(_, bytes)| bytes.is_some())
            {
                slots.remove(oldest);
            }
        }
        drop(slots);
        self.changed.notify_all();
    }
}

/// The obligation to fetch a window. Dropping it without bytes lets the next thread claim the
/// window.
pub(super) struct Claim<'a> {
    pub(super) windows: &'a Windows,
    pub(super) key: WindowKey,
    pub(super) bytes: Option<Bytes>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.windows.end(self.key, self.bytes.take());
    }
}

#[cfg(all(test, feature = "schedules"))]
mod schedules {
    use shuttle::thread;

    use super::*;

    /// Reads a window as a file does, and returns its bytes. With `fails`, the fetch fails.
    fn read(windows: &Windows, key: WindowKey, fails: bool) -> Option<Bytes> {
        if let Some(ready) = windows.claim(key) {
            return Some(ready);
        }
        let mut claim = Claim { windows, key, bytes: None };
        thread::yield_now();
        if fails {
            return None;
        }
        let bytes = Bytes::copy_from_slice(&key.1.to_le_bytes());
        claim.bytes = Some(bytes.clone());
        Some(bytes)
    }

    fn threads_come_in_any_order() {
        let windows = Windows::new(2);
        let threads: Vec<_> = (0..4_u64)
            .map(|number| {
                let windows = Arc::clone(&windows);
                thread::spawn(move || {
                    for position in [number % 2, 2, number] {
                        let key = (7, position);
                        let found = read(&windows, key, number == 3 && position == 2);
                        assert!(
                            found.is_none_or(|bytes| *bytes == position.to_le_bytes()),
                            "the bytes of another window"
                        );
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic, and nobody waits for ever");
        }
        assert!(windows.slots().iter().all(|(_, bytes)| bytes.is_some()), "nothing is on its way");
        assert!(windows.kept() <= 2);
    }

    #[test]
    fn a_window_is_fetched_by_one_and_read_by_all() {
        let asked = std::env::var("LODE_CAMPAIGN_SCHEDULES").ok().and_then(|text| text.parse().ok());
        let orders = asked.unwrap_or(1000);
        shuttle::check_random(threads_come_in_any_order, orders);
        shuttle::check_pct(threads_come_in_any_order, orders, 4);
    }
}
