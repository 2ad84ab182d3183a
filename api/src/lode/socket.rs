//! The socket over which commands pass file descriptors to the daemon.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /api/lode/socket`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SocketResponse {
    /// Path of a Unix socket on the daemon's machine.
    pub path: String,
    /// The folder of the daemon's store.
    #[serde(default)]
    pub home: String,
    /// Process id of the daemon.
    #[serde(default)]
    pub pid: u32,
}
