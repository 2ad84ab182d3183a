//! Retention of the registry's repositories.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/retention`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionRequest {
    /// Only report the tags and manifests that would be removed.
    pub dry_run: bool,
}

/// Response of `POST /api/lode/retention`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetentionResponse {
    /// Whether the daemon has rules that remove tags or manifests.
    pub has_rules: bool,
    /// Repositories with tags or manifests that no rule keeps.
    pub repositories: Vec<ReducedRepository>,
    /// Repositories whose retention failed, with the reasons.
    pub failures: Vec<String>,
}

/// A repository with tags or manifests that no rule keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReducedRepository {
    /// Name of the repository.
    pub repository: String,
    /// Tags that no rule keeps.
    pub tags: Vec<String>,
    /// Digests of manifests without a tag that are older than the rule allows.
    pub manifests: Vec<String>,
    /// Number of tags that are kept.
    pub kept_tags: u64,
    /// Number of tags that were removed; 0 in a dry run. A tag that was moved meanwhile is kept.
    pub removed_tags: u64,
    /// Number of manifests that were removed; 0 in a dry run.
    pub removed_manifests: u64,
}
