//! Where commands hand files over.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `GET /api/lode/socket`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SocketResponse {
    /// A Unix socket on the daemon's machine.
    pub path: String,
    /// The folder of the daemon's store.
    #[serde(default)]
    pub home: String,
    /// The daemon's process.
    #[serde(default)]
    pub pid: u32,
}
