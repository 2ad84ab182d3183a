//! Requests for models, and reports about loaded models.

use std::time::SystemTime;

use content::Digest;
use protocol::{DeviceChoice, LoadReply};

use crate::{Context, KeepAliveChoice, Residence};

/// A model and its context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoadKey {
    /// Digest of the manifest.
    pub model: Digest,
    /// Context length of one sequence, in tokens.
    pub context: u64,
}

/// The model that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// Digest of the manifest.
    pub model: Digest,
    /// Name of the model, for messages.
    pub name: String,
    /// Context length of one sequence.
    pub context: Context,
    /// Bytes that the model with this context takes of [`Limits::memory`].
    pub need: u64,
    /// How long the model stays loaded after the request.
    pub keep_alive: KeepAliveChoice,
    /// Whether the model may be unloaded for other models.
    pub residence: Residence,
    /// The requested placement of its layers.
    pub choice: DeviceChoice,
    /// Whether the request uses the model beside conversations, to tokenize, embed or rank. Such a
    /// request takes no slot.
    pub is_aside: bool,
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
