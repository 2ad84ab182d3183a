//! The limit of a runner's private memory if none is configured: somewhat more than its plan
//! estimates.
//!
//! Models are untrusted data. A template or a tokenizer that grows without bounds must end only its
//! own runner and not the machine's other programs. The daemon sets the limit, because it changes
//! with the KV cache, and the runner cannot change it (its system calls are filtered).

use std::fmt;
use std::sync::Arc;

use protocol::ContextRequest;

/// Bytes that every runner may use beyond the estimate, for libraries and requests.
const APART: u64 = 512 << 20;
/// Bytes for tokenizing a long text: about 200 bytes for each byte of text, whose length `prompt`
/// bounds.
const TEXT: u64 = 256 << 20;
/// Stack of a compute thread; there is one thread per core.
const STACK: u64 = 2 << 20;
/// Bytes per slot for the constraint of an answer; `prompt` bounds its states.
const CONSTRAINT: u64 = 40 << 20;

/// The estimate of a runner's private memory in bytes, as a function of its KV cache.
#[derive(Clone)]
pub struct PrivateMemory(Arc<dyn Fn(ContextRequest) -> u64 + Send + Sync>);

impl PrivateMemory {
    /// Creates an estimate from the function `bytes`.
    pub fn new(bytes: impl Fn(ContextRequest) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(bytes))
    }

    /// Returns the limit for a runner with this cache: one and a half times the estimate, plus the
    /// allowance of every runner.
    pub(crate) fn limit(&self, cache: ContextRequest) -> u64 {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let beside = TEXT + cores * STACK + cache.slots.saturating_mul(CONSTRAINT);
        let counted = (self.0)(cache).saturating_add(beside);
        counted.saturating_add(counted / 2).saturating_add(APART)
    }

    /// Returns the limit while the cache `to` is built and the cache `from` still exists.
    pub(crate) fn limit_of_change(&self, from: ContextRequest, to: ContextRequest) -> u64 {
        self.limit(to).saturating_add((self.0)(from))
    }
}

impl fmt::Debug for PrivateMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateMemory").finish_non_exhaustive()
    }
}

/// Limits one of our processes to this many bytes of private memory. The hard limit of the process
/// is the upper bound.
#[cfg(target_os = "linux")]
pub(crate) fn limit(pid: u32, bytes: u64) -> std::io::Result<()> {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("the process has ended"))?;
    // The process inherited our hard limit. It stays unchanged, so that a later limit may be
    // higher.
    let hard = rustix::process::getrlimit(Resource::Data).maximum;
    let current = hard.map_or(bytes, |hard| bytes.min(hard));
    prlimit(Some(pid), Resource::Data, Rlimit { current: Some(current), maximum: hard })?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn limit(_pid: u32, _bytes: u64) -> std::io::Result<()> {
    Ok(())
}
