//! The daemon as a registry, and its settings for other registries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /api/lode/registry`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryResponse {
    /// Access mode: `open`, `read-only`, `anonymous-pull` or `private`.
    pub mode: String,
    /// Whether the mode is configured. If it is not, only this machine may make changes.
    pub chosen: bool,
    /// Whether API keys are configured. In modes without users, a key also grants access to the
    /// registry.
    pub keys: bool,
    /// Whether users with passwords are configured.
    pub users: bool,
    /// Permission to pull: `anyone`, `users`, `keys` or `nobody`.
    pub pull: String,
    /// Permission to push and delete: the same values, or `this machine` if no mode is configured.
    pub push: String,
    /// Hosts from which the daemon fetches content that it lacks; absent if pull-through is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_through: Option<Vec<String>>,
    /// Settings for other registries.
    pub hosts: Vec<RegistryHost>,
}

/// Settings for another registry, without credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryHost {
    /// Host of the registry.
    pub host: String,
    /// Mirrors that are tried before the registry, in this order.
    pub mirrors: Vec<String>,
    /// Whether connections use plain HTTP without TLS.
    pub plain_http: bool,
    /// Why the settings cannot be read, if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
