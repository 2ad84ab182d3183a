//! The pool of compute threads: as many as there are usable cores, including the caller's thread.
//!
//! Work comes in regions: [`Pool::run`] hands out ranges of tasks until none are left, and returns
//! when all are done. Between regions the threads spin for a moment, because the next region
//! usually follows at once; then they sleep.
//!
//! # Invariants
//! - One region at a time: a second caller computes alone.
//! - A thread that has not joined the region when all tasks are taken is not waited for. So no time
//!   is lost if other processes keep some threads from running.
//! - A panic in a region ends the process, because data that was half-written cannot be repaired.
#![expect(unsafe_code, reason = "threads share the caller's closure and write rows of one slice")]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// The exit code of a process that ends because of a panic in a region: `EX_SOFTWARE` of
/// sysexits.h.
const PANICKED: i32 = 70;

/// The pool. Its threads end, and are joined, when it is dropped.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Locked by the caller of the current region.
    caller: Mutex<()>,
}

#[derive(Debug)]
struct Shared {
    /// Counts regions. Idle threads watch it.
    region: AtomicU32,
    /// Whether threads may join the region.
    open: AtomicBool,
    /// Number of threads in the region, without the caller.
    inside: AtomicUsize,
    /// The next free task.
    next: AtomicUsize,
    /// Written while the region is closed and no thread is inside; read by threads inside an open
    /// region.
    job: UnsafeCell<Job>,
    /// Whether the caller sleeps until all threads have left.
    waiting: AtomicBool,
    /// The sleeping caller.
    sleeper: Mutex<Option<Thread>>,
    /// For each thread, whether it sleeps.
    sleeping: Vec<AtomicBool>,
    ended: AtomicBool,
}

/// The work of a region.
#[derive(Clone, Debug)]
struct Job {
    work: *const (dyn Fn(Range<usize>) + Sync),
    tasks: usize,
    /// Number of threads that may join.
    threads: usize,
}

impl Job {
    /// Returns how many of the remaining tasks a thread takes: long ranges first, which suit the
    /// memory, and short ones at the end, so that a slow thread delays no other. If half of the
    /// threads run at half speed, the first range of a slow thread takes as long as the whole
    /// region.
    fn share(&self, left: usize) -> usize {
        (2 * left / (3 * self.threads)).max(1)
    }
}

// SAFETY: `job` is written by the one caller that holds `Pool::caller`, while `open` is false and
// after `inside` was seen to be 0. Other threads read it only between adding themselves to
// `inside`, having seen `open` to be true after that, and subtracting themselves. Both flags are
// accessed in one total order (`SeqCst`), so a reader has seen the write.
unsafe impl Sync for Shared {}
// SAFETY: as above. The closure behind the pointer is `Sync` and outlives the region, see
// `Pool::run`.
unsafe impl Send for Shared {}

impl Pool {
    /// Creates a pool of so many threads, including the caller's.
    ///
    /// # Errors
    /// Fails if the system creates no more threads.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let others = threads.saturating_sub(1);
        let nothing: &'static (dyn Fn(Range<usize>) + Sync) = &|_| {};
        let shared = Arc::new(Shared {
            region: AtomicU32::new(0),
            open: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { work: nothing, tasks: 0, threads: 1 }),
            waiting: AtomicBool::new(false),
            sleeper: Mutex::new(None),
            sleeping: (0..others).map(|_| AtomicBool::new(false)).collect(),
            ended: AtomicBool::new(false),
        });
        let start = |index: usize| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("compute-{}", index + 1)).spawn(move || shared.serve(index))
        };
        // If a thread cannot be started, the threads that were started end with the pool.
        let mut pool = Self { shared: shared.clone(), threads: Vec::new(), caller: Mutex::new(()) };
        for index in 0..others {
            pool.threads.push(start(index)?);
        }
        Ok(pool)
    }

    /// Returns the number of threads that compute.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work` with ranges that together are `0..tasks`, from several threads.
    pub fn run(&self, tasks: usize, work: impl Fn(Range<usize>) + Sync) {
        if tasks == 0 {
            return;
        }
        let held = if self.threads.is_empty() || tasks == 1 { None } else { self.caller.try_lock().ok() };
        let Some(_held) = held else {
            let bomb = Bomb;
            work(0..tasks);
            std::mem::forget(bomb);
            return;
        };
        let work: &(dyn Fn(Range<usize>) + Sync) = &work;
        // SAFETY: only the lifetime changes. Only threads inside the region use the pointer, and
        // `Shared::close` returns when no thread is inside any more, which is before `work` ends. A
        // panic in between ends the process.
        let work: *const (dyn Fn(Range<usize>) + Sync) = unsafe { std::mem::transmute(work) };
        self.shared.open(Job { work, tasks, threads: self.threads() });
        for (index, thread) in self.threads.iter().enumerate() {
            if self.shared.sleeping[index].load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        self.shared.work();
        self.shared.close();
    }

    /// Calls `each` with every row of `out`, `width` elements each, in any order and from several
    /// threads.
    pub fn for_rows<T: Send>(&self, out: &mut [T], width: usize, each: impl Fn(usize, &mut [T]) + Sync) {
        assert!(width > 0 && out.len().is_multiple_of(width), "whole rows");
        let rows = out.len() / width;
        let out = SharedSlice::new(out);
        self.run(rows, |range| {
            for row in range {
                // SAFETY: a region hands out each row to exactly one thread.
                each(row, unsafe { out.range(row * width..(row + 1) * width) });
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.region.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic of the thread would have ended the process.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn open(&self, job: Job) {
        self.next.store(0, Ordering::SeqCst);
        // SAFETY: the caller holds the pool, the region is closed, and no thread inside has seen it
        // open.
        unsafe { *self.job.get() = job };
        self.open.store(true, Ordering::SeqCst);
        self.region.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes tasks until none are left.
    fn work(&self) {
        // SAFETY: this thread is the caller, or it is inside and has seen the region open.
        let job = unsafe { &*self.job.get() };
        // SAFETY: the closure lives until the region has been closed.
        let work = unsafe { &*job.work };
        let bomb = Bomb;
        let taken = |from: usize| (from < job.tasks).then(|| from + job.share(job.tasks - from));
        while let Ok(from) = self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken) {
            work(from..from + job.share(job.tasks - from));
        }
        std::mem::forget(bomb);
    }

    /// Closes the region, and waits for the threads inside.
    fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        let begin = Instant::now();
        while self.inside.load(Ordering::SeqCst) > 0 {
            if begin.elapsed() < SPIN {
                spin();
                continue;
            }
            *self.sleeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
            self.waiting.store(true, Ordering::SeqCst);
            if self.inside.load(Ordering::SeqCst) > 0 {
                std::thread::park();
            }
        }
        self.waiting.store(false, Ordering::SeqCst);
    }

    /// Runs a thread of the pool: waits for a region, works in it, and repeats.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait(index, seen);
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            self.inside.fetch_add(1, Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) {
                self.work();
            }
            let last = self.inside.fetch_sub(1, Ordering::SeqCst) == 1;
            if last
                && self.waiting.swap(false, Ordering::SeqCst)
                && let Some(caller) = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                caller.unpark();
            }
        }
    }

    /// Waits until there is another region than `seen`; returns its number.
    fn wait(&self, index: usize, seen: u32) -> u32 {
        let begin = Instant::now();
        loop {
            let region = self.region.load(Ordering::SeqCst);
            if region != seen {
                return region;
            }
            if begin.elapsed() < SPIN {
                spin();
                continue;
            }
            self.sleeping[index].store(true, Ordering::SeqCst);
            if self.region.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            self.sleeping[index].store(false, Ordering::SeqCst);
        }
    }
}

/// Spins for a few dozen nanoseconds.
fn spin() {
    for _ in 0..16 {
        std::hint::spin_loop();
    }
}

/// Ends the process when it is dropped, which only a panic does.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        tracing::error!("a computation panicked; the runner ends");
        std::process::exit(PANICKED);
    }
}

/// A slice whose parts are written by different threads.
pub struct SharedSlice<'a, T> {
    start: *mut T,
    length: usize,
    borrowed: std::marker::PhantomData<&'a mut [T]>,
}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares a slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), borrowed: std::marker::PhantomData }
    }

    /// Returns a part of the slice.
    ///
    /// # Safety
    /// No other reference to an element of the part may exist at the same time.
    #[expect(clippy::mut_from_ref, reason = "the caller gives each part to one thread")]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "a part of the slice");
        // SAFETY: the part lies within the slice, which is borrowed for as long as this lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

// SAFETY: parts come only from `range`, whose callers ensure that no two threads have the same
// element.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).expect("threads");
            for (rows, width) in [(0, 3), (1, 1), (7, 5), (1000, 2)] {
                let mut out = vec![0u32; rows * width];
                pool.for_rows(&mut out, width, |row, line| line.iter_mut().for_each(|value| *value += row as u32 + 1));
                assert!(out.iter().enumerate().all(|(at, value)| *value == (at / width) as u32 + 1));
            }
        }
    }

    #[test]
    fn regions_follow_one_another() {
        let pool = Pool::new(3).expect("threads");
        let total = AtomicUsize::new(0);
        for tasks in 0..2000 {
            pool.run(tasks, |range| {
                total.fetch_add(range.len(), Ordering::SeqCst);
            });
            if tasks % 500 == 0 {
                // Long enough for the threads to sleep.
                std::thread::sleep(4 * SPIN);
            }
        }
        assert_eq!(total.into_inner(), 2000 * 1999 / 2);
    }

    /// Panics in a separate process, which [`a_panic_ends_the_process`] starts.
    #[test]
    #[ignore = "ends the process"]
    fn panics() {
        let threads = std::env::var("PANICKING_POOL").map_or(2, |threads| threads.parse().expect("a number"));
        let pool = Pool::new(threads).expect("threads");
        pool.run(100, |range| assert!(!range.contains(&99), "the last task panics"));
        unreachable!("the process has ended");
    }

    #[test]
    fn a_panic_ends_the_process() {
        for threads in ["1", "4"] {
            let mut program = std::process::Command::new(std::env::current_exe().expect("this program"));
            program.args(["--exact", "pool::tests::panics", "--ignored"]).env("PANICKING_POOL", threads);
            let output = program.output().expect("it runs");
            assert_eq!(output.status.code(), Some(PANICKED), "{threads} threads: {output:?}");
        }
    }

    #[test]
    fn a_second_caller_computes_alone() {
        let pool = Pool::new(2).expect("threads");
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(50, |range| {
                            total.fetch_add(range.len(), Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 200 * 50);
    }
}
