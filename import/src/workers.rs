//! Parallel work on threads that end with the call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls `work` for every position below `count` on at most `threads` threads; the results are in
/// the order of the positions. After a failure no further work is started, and the first failure is
/// returned. `state` creates a separate state for each thread.
pub fn in_parallel<T: Send, S, E: Send>(
    count: usize,
    threads: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    let failure: Mutex<Option<E>> = Mutex::new(None);
    let thread = || {
        let mut state = state();
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            if position >= count {
                return;
            }
            match work(&mut state, position) {
                Ok(result) => results.lock().unwrap_or_else(PoisonError::into_inner)[position] = Some(result),
                Err(error) => {
                    next.store(count, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, count.max(1)) {
            // If the system refuses more threads, fewer do the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, thread);
        }
        thread();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(results.into_iter().flatten().collect())
}
