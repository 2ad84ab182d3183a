//! Blocking reads of files that are fetched by range, which gives an import a [`ReadAt`] for any
//! [`Provider`].
//!
//! A file is fetched in windows (`windows`), so that several small tensors, or the pieces of a
//! large one, cost one request.
//!
//! Worker threads block in [`Requests::run`]. They must not be threads of the runtime.

mod requests;
mod windows;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use content::{Descriptor, Digest, Provider};
use futures_util::future::BoxFuture;
use import::ReadAt;

pub use requests::{Presence, Requests, observed};
use windows::Claim;
pub use windows::Windows;

/// Size of a window in bytes.
const WINDOW: u64 = 4 << 20;

/// Size of the first window in bytes. If all tensors of a file are known already, only the header
/// is read, which is in this window.
const HEAD: u64 = 1 << 20;

/// Maximum size of one read in bytes, which limits headers. Tensors are read in pieces.
const MOST_AT_ONCE: u64 = 64 << 20;

/// The offset of a window after the first.
fn begin(position: u64) -> u64 {
    HEAD + (position - 1) * WINDOW
}

/// The number of the window that contains a byte, and the offset of that window.
fn place(offset: u64) -> (u64, u64) {
    match offset.checked_sub(HEAD) {
        None => (0, 0),
        Some(beyond) => (1 + beyond / WINDOW, HEAD + beyond / WINDOW * WINDOW),
    }
}

/// Fetches exactly the bytes of a range.
pub type FetchRange = dyn Fn(Range<u64>) -> BoxFuture<'static, io::Result<Bytes>> + Send + Sync;

/// A file and how to fetch its ranges.
pub struct RangeSource {
    /// The name for error messages, usually a URL.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// An identity of the bytes that does not depend on the source: see [`ReadAt::identity`].
    pub identity: Option<String>,
    /// Fetches a range.
    pub fetch: Arc<FetchRange>,
}

impl RangeSource {
    /// A blob of a provider. `name` is its name in error messages; `failed` converts the provider's
    /// errors.
    pub fn blob<P: Provider + Clone + 'static>(
        provider: &P,
        name: String,
        blob: &Descriptor,
        failed: fn(content::Error) -> io::Error,
    ) -> Self {
        let (provider, blob) = (provider.clone(), blob.clone());
        Self {
            name,
            size: blob.size,
            identity: Some(blob.digest.to_string()),
            fetch: Arc::new(move |range| {
                let (provider, blob) = (provider.clone(), blob.clone());
                Box::pin(async move { provider.read(&blob, range).await.map_err(failed) })
            }),
        }
    }
}

/// A file that is read through windows.
pub struct RangeReader {
    source: RangeSource,
    /// Distinguishes its windows from the windows of other files.
    number: u64,
    windows: Arc<Windows>,
    requests: Requests,
}

impl RangeReader {
    /// Creates a reader that shares its windows with other files of the same pull.
    pub fn new(source: RangeSource, requests: Requests, windows: Arc<Windows>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { source, number: NEXT.fetch_add(1, Ordering::Relaxed), windows, requests }
    }

    fn window(&self, position: u64) -> io::Result<Bytes> {
        let key = (self.number, position);
        if let Some(ready) = self.windows.claim(key) {
            return Ok(ready);
        }
        let mut claim = Claim { windows: &self.windows, key, bytes: None };
        let (start, length) = if position == 0 { (0, HEAD) } else { (begin(position), WINDOW) };
        let end = start.saturating_add(length).min(self.source.size);
        let bytes = self.fetch(start..end)?;
        claim.bytes = Some(bytes.clone());
        Ok(bytes)
    }

    fn fetch(&self, range: Range<u64>) -> io::Result<Bytes> {
        let bytes = self.requests.run((self.source.fetch)(range.clone()))?;
        if bytes.len() as u64 != range.end - range.start {
            let reason = format!("{} bytes came of {range:?}", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(bytes)
    }
}

impl ReadAt for RangeReader {
    fn size(&self) -> u64 {
        self.source.size
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.source.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        if buffer.len() as u64 > MOST_AT_ONCE {
            let reason = format!(
                "its header is longer than {} MiB, the limit for remote files; download the file and import it locally",
                MOST_AT_ONCE >> 20
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let mut at = offset;
        while at < end {
            let (position, begin) = place(at);
            let window = self.window(position)?;
            let skipped = (at - begin) as usize;
            let part = &mut buffer[(at - offset) as usize..];
            let count = part.len().min(window.len() - skipped);
            part[..count].copy_from_slice(&window[skipped..skipped + count]);
            at += count as u64;
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.source.name.clone()
    }

    fn identity(&self) -> Option<String> {
        self.source.identity.clone()
    }

    fn digest(&self) -> Option<Digest> {
        self.source.identity.as_ref()?.parse().ok()
    }
}

impl fmt::Debug for RangeReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RangeSource { name, size, .. } = &self.source;
        f.debug_struct("RangeReader").field("name", name).field("size", size).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// A file in which each byte encodes its offset.
    fn file(size: u64, windows: &Arc<Windows>, requests: &Requests, fetched: &Arc<Mutex<Vec<u64>>>) -> RangeReader {
        let fetched = Arc::clone(fetched);
        let fetch = move |range: Range<u64>| {
            fetched.lock().expect("nobody panicked").push(place(range.start).0);
            let bytes: Bytes = range.map(byte).collect();
            async move { Ok(bytes) }.boxed()
        };
        let source = RangeSource { name: "f".to_owned(), size, identity: None, fetch: Arc::new(fetch) };
        RangeReader::new(source, requests.clone(), Arc::clone(windows))
    }

    /// A runtime, and a presence that keeps its requests alive.
    fn waiting() -> (Runtime, Presence, Requests) {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let presence = Presence::new();
        let requests = runtime.block_on(async { presence.requests() });
        (runtime, presence, requests)
    }

    fn byte(offset: u64) -> u8 {
        (offset % 251) as u8
    }

    fn check(file: &RangeReader, range: Range<u64>) {
        let mut buffer = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut buffer, range.start).expect("inside");
        assert!(buffer.iter().zip(range.clone()).all(|(found, offset)| *found == byte(offset)), "{range:?}");
    }

    #[test]
    fn refuses_a_header_without_end() {
        let (_runtime, _presence, requests) = waiting();
        let fetched = Arc::default();
        let file = file(1 << 40, &Windows::new(1), &requests, &fetched);
        let mut buffer = vec![0; MOST_AT_ONCE as usize + 1];
        let error = file.read_exact_at(&mut buffer, 8).expect_err("too much").to_string();
        assert!(error.contains("longer than 64 MiB"), "{error}");
        assert!(fetched.lock().expect("nobody panicked").is_empty(), "nothing was asked for");
    }

    #[test]
    fn keeps_what_was_used_last() {
        let (_runtime, _presence, requests) = waiting();
        let (windows, fetched) = (Windows::new(2), Arc::default());
        let file = file(begin(4) - 10, &windows, &requests, &fetched);
        check(&file, HEAD - 3..HEAD + 3);
        check(&file, 5..10);
        check(&file, begin(3)..begin(4) - 10);
        check(&file, 0..1);
        check(&file, HEAD..HEAD + 1);
        assert_eq!(*fetched.lock().expect("nobody panicked"), [0, 1, 3, 1]);
        assert!(file.read_exact_at(&mut [0; 2], begin(4) - 11).is_err(), "after the end");
        assert!(file.read_exact_at(&mut [0; 2], u64::MAX).is_err());
        assert!(file.read_exact_at(&mut [], 0).is_ok());
        assert_eq!(windows.kept(), 2);
    }

    #[test]
    fn a_window_is_fetched_once_for_all() {
        let (_runtime, _presence, requests) = waiting();
        let (windows, fetched) = (Windows::new(8), Arc::default());
        let file = file(WINDOW, &windows, &requests, &fetched);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let file = &file;
                scope.spawn(move || check(file, thread..thread + 1000));
            }
        });
        assert_eq!(fetched.lock().expect("nobody panicked").len(), 1);
    }

    #[test]
    fn a_fetch_ends_when_nobody_waits_for_it() {
        let (_runtime, presence, requests) = waiting();
        let fetch = |_: Range<u64>| std::future::pending::<io::Result<Bytes>>().boxed();
        let source = RangeSource { name: "f".to_owned(), size: 3, identity: None, fetch: Arc::new(fetch) };
        let file = RangeReader::new(source, requests.clone(), Windows::new(1));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| file.read_exact_at(&mut [0; 3], 0));
            drop(presence);
            let error = reading.join().expect("no panic").expect_err("nothing came").to_string();
            assert!(error.contains("disconnected"), "{error}");
        });
        assert!(!requests.are_wanted());
    }

    #[test]
    fn a_failure_is_not_kept() {
        let (_runtime, _presence, requests) = waiting();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let fetch = move |_: Range<u64>| {
            let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if first { Err(io::Error::other("down")) } else { Ok(Bytes::from_static(b"abc")) } }.boxed()
        };
        let source = RangeSource { name: "f".to_owned(), size: 3, identity: None, fetch: Arc::new(fetch) };
        let file = RangeReader::new(source, requests, Windows::new(1));
        let mut buffer = [0; 3];
        assert!(file.read_exact_at(&mut buffer, 0).is_err());
        file.read_exact_at(&mut buffer, 0).expect("the second time");
        assert_eq!(&buffer, b"abc");
    }
}
