//! Loaded models, for reports to users.

use std::time::SystemTime;

use content::Digest;
use protocol::LoadReply;

/// A model and its context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoadKey {
    /// Digest of the manifest.
    pub model: Digest,
    /// Context length of one sequence, in tokens.
    pub context: u64,
}

/// A loaded model, for reports to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The name under which it was loaded.
    pub name: String,
    /// The model and its context.
    pub key: LoadKey,
    /// The runner's reply to the load.
    pub reply: LoadReply,
    /// When it will be unloaded if it is not used; `None` for never.
    pub expires: Option<SystemTime>,
    /// Process id of the runner.
    pub pid: u32,
    /// Number of requests that use it.
    pub active: usize,
    /// Number of requests that wait for it.
    pub waiting: usize,
}
