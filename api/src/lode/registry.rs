//! How this daemon is a registry, and what it knows of others.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `GET /api/lode/registry`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryResponse {
    /// `open`, `read-only`, `anonymous-pull` or `private`.
    pub mode: String,
    /// Whether somebody chose the mode. Where nobody did, other machines may not change anything.
    pub chosen: bool,
    /// Whether API keys are asked for. Where the mode needs no users they open the registry, too.
    pub keys: bool,
    /// Whether users are asked for their password.
    pub users: bool,
    /// Who may pull: `anyone`, `users`, `keys` or `nobody`.
    pub pull: String,
    /// Who may push and delete, likewise; `this machine` where nobody chose a mode.
    pub push: String,
    /// The hosts from which it fetches what it lacks; absent where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_through: Option<Vec<String>>,
    /// Other registries that have settings.
    pub hosts: Vec<RegistryHost>,
}

/// Settings of another registry, without its login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryHost {
    /// Its host.
    pub host: String,
    /// What is asked before it, in this order.
    pub mirrors: Vec<String>,
    /// Whether it is spoken to without TLS.
    pub plain_http: bool,
    /// Why its settings cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
