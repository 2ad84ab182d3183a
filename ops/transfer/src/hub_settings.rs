//! Settings of the hub that serves models named `hf.co/…`.

use std::fmt;

use registry::client::Pace;

/// The hub that serves models named `hf.co/…`.
#[derive(Clone)]
pub struct HubSettings {
    /// The URL of the hub.
    pub endpoint: String,
    /// The access token for the hub.
    pub token: Option<String>,
    /// The rate limit and the urgency of its transfers.
    pub pace: Pace,
}

impl fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HubSettings({}, {})", self.endpoint, if self.token.is_some() { "with a token" } else { "anonymous" })
    }
}
