//! Hashing of many blobs in parallel.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use content::operation::Result;
use content::{Digest, Observer};
use library::{Library, ensure_wanted};
use store::Verified;

/// A blob with the result of its verification, or the reason why it cannot be read.
pub(crate) type Outcome = (Digest, Result<Verified, store::Error>);

/// Reads and hashes blobs; the results are in the order of `blobs`. The store records the good
/// blobs as verified and forgets earlier records of the rest.
pub(crate) fn verify_all(library: &Library, blobs: &[(Digest, u64)], observer: &dyn Observer) -> Result<Vec<Outcome>> {
    let total = blobs.iter().map(|(_, size)| size).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let found: Mutex<Vec<(usize, Outcome)>> = Mutex::default();
    let work = || {
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some((digest, size)) = blobs.get(position).filter(|_| observer.goes_on()) else { return };
            let outcome = library.blobs().verify(digest, Some(*size), &mut |count| {
                let done = done.fetch_add(count, Ordering::Relaxed) + count;
                observer.bytes(done.min(total), total);
                observer.goes_on()
            });
            found.lock().unwrap_or_else(PoisonError::into_inner).push((position, (*digest, outcome)));
        }
    };
    // Twice the number of cores: some threads wait for the disk while the rest hash.
    let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get() * 2).min(blobs.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If the system cannot start more threads, fewer do the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    ensure_wanted(observer)?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(position, _)| *position);
    let now = std::time::SystemTime::now();
    for (position, (digest, outcome)) in &found {
        match outcome {
            Ok(Verified::Good) => {
                metrics::counter!("lode_verified_bytes_total").increment(blobs[*position].1);
                library.blobs().record_verified(digest, now);
            }
            // It was not read.
            Ok(Verified::InTier) => {}
            _ => library.blobs().forget_verified(digest),
        }
    }
    Ok(found.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Describes the problem with a blob, for the user; `None` if it is good.
pub(crate) fn complaint(
    library: &Library,
    digest: &Digest,
    outcome: &Result<Verified, store::Error>,
    expected: u64,
) -> Option<String> {
    match outcome {
        Ok(Verified::Good | Verified::InTier) => None,
        Ok(Verified::Missing) => Some("it is missing".to_owned()),
        Ok(Verified::SourceLost) => Some(missing(library, digest)),
        Ok(Verified::WrongSize { actual }) => Some(format!("it has {actual} bytes, its descriptor says {expected}")),
        Ok(Verified::WrongBytes { actual }) => Some(format!("its bytes hash to `{actual}`")),
        Err(error) => Some(error.to_string()),
    }
}

/// Says why a blob is missing: the file in which it lay was lost, if there is one.
pub(crate) fn missing(library: &Library, digest: &Digest) -> String {
    match library.blobs().missing_reason(digest) {
        Ok(None) => "it is missing".to_owned(),
        Ok(Some(error)) | Err(error) => error.to_string(),
    }
}
