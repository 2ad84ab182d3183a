//! Jobs of the daemon: pulls, pushes and creates, which go on without their clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /api/lode/jobs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobsResponse {
    /// Jobs by number. Ended jobs stay until the daemon ends, the latest 100 of them.
    pub jobs: Vec<JobEntry>,
    /// The limit that all transfers share now, in bytes per second; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobEntry {
    /// Number of the job.
    pub id: u64,
    /// Pull, push or create.
    pub kind: JobKind,
    /// Name of the model.
    pub model: String,
    /// Destination of a push that differs from the name; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Whether it runs, and how it ended.
    pub state: JobState,
    /// The last line of its progress.
    pub status: String,
    /// Bytes in total; 0 if it is not known yet.
    pub total: u64,
    /// Bytes that are complete.
    pub completed: u64,
    /// Bytes per second over the last seconds; 0 unless it runs.
    pub rate: u64,
    /// Its own limit in bytes per second; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Its priority.
    pub priority: JobPriority,
    /// Time when it was requested (RFC 3339).
    pub created: String,
    /// Why it failed; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum JobKind {
    Pull,
    Push,
    Create,
}

/// Whether a job runs, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It runs, or waits for jobs of a higher priority.
    Running,
    /// It waits until it is resumed.
    Paused,
    /// It has succeeded.
    Done,
    /// It has failed. It can be resumed.
    Failed,
    /// It was cancelled. Transferred blobs are kept for a day, for the next attempt.
    Cancelled,
}

/// The priority of a job. While a job has transferred bytes in the last two seconds, jobs of a
/// lower priority wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum JobPriority {
    Low,
    #[default]
    Normal,
    High,
}

/// Body of `POST /api/lode/jobs/pause`, `resume`, `cancel` and `watch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Number of the job.
    pub id: u64,
}

/// Body of `POST /api/lode/jobs/change`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    /// Number of the job.
    pub id: u64,
    /// Its limit in bytes per second; 0 is no limit. Without it, the limit stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Its priority. Without it, the priority stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<JobPriority>,
}

/// Body of `POST /api/lode/bandwidth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BandwidthRequest {
    /// The limit that all transfers share until the daemon ends, in bytes per second; 0 is no
    /// limit. Without it, the configured limit applies again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Response of `POST /api/lode/bandwidth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthResponse {
    /// The limit that applies now, in bytes per second; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}
