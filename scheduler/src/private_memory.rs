//! How much private memory a runner may have, where nobody says it: somewhat more than its plan counts.
//!
//! What models say is data from strangers; a template or a tokenizer that grows without end must end its own runner and
//! not the machine's other programs. The daemon sets the limit, because it changes with the KV cache, and the runner
//! cannot (its calls are filtered).

use std::fmt;
use std::sync::Arc;

use protocol::ContextRequest;

/// What every runner may have beside what is counted: libraries, requests.
const APART: u64 = 512 << 20;
/// A long text while it is cut into tokens: some 200 bytes for each of its bytes, of which `prompt` bounds the number.
const TEXT: u64 = 256 << 20;
/// The stack of a thread that computes, of which there is one for each core.
const STACK: u64 = 2 << 20;
/// What an answer is held to, in each slot: `prompt` bounds its states.
const CONSTRAINT: u64 = 40 << 20;

/// Bytes of private memory that a plan counts for a runner, by its KV cache.
#[derive(Clone)]
pub struct PrivateMemory(Arc<dyn Fn(ContextRequest) -> u64 + Send + Sync>);

impl PrivateMemory {
    /// What is counted by `bytes`.
    pub fn new(bytes: impl Fn(ContextRequest) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(bytes))
    }

    /// What a runner with that cache may have: half more than is counted, and what every runner may.
    pub(crate) fn limit(&self, cache: ContextRequest) -> u64 {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let beside = TEXT + cores * STACK + cache.slots.saturating_mul(CONSTRAINT);
        let counted = (self.0)(cache).saturating_add(beside);
        counted.saturating_add(counted / 2).saturating_add(APART)
    }

    /// The same while one cache is made beside another.
    pub(crate) fn limit_of_change(&self, from: ContextRequest, to: ContextRequest) -> u64 {
        self.limit(to).saturating_add((self.0)(from))
    }
}

impl fmt::Debug for PrivateMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateMemory").finish_non_exhaustive()
    }
}

/// Limits a process of ours to so many bytes of private memory, as far as a limit that it was started with allows.
#[cfg(target_os = "linux")]
pub(crate) fn limit(pid: u32, bytes: u64) -> std::io::Result<()> {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("the process has ended"))?;
    // Its hard limit is the one that it has from us; it stays, so that the next limit may be higher.
    let hard = rustix::process::getrlimit(Resource::Data).maximum;
    let current = hard.map_or(bytes, |hard| bytes.min(hard));
    prlimit(Some(pid), Resource::Data, Rlimit { current: Some(current), maximum: hard })?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn limit(_pid: u32, _bytes: u64) -> std::io::Result<()> {
    Ok(())
}
