//! Requests for models.

use content::Digest;
use protocol::DeviceChoice;

use crate::{Context, KeepAliveChoice, Residence};

/// The model that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// Digest of the manifest.
    pub model: Digest,
    /// Name of the model, for messages.
    pub name: String,
    /// Context length of one sequence.
    pub context: Context,
    /// Bytes that the model with this context takes of [`Limits::memory`](crate::Limits::memory).
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
