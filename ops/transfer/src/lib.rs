//! Transfer of models between this store, registries and hubs.
//!
//! ```text
//! pull ──▶ resolve ──▶ copy blobs              (Lode's models, Ollama's tensor layers)
//!              └─────▶ import by range requests (files of other tools)
//! push ──▶ send the blobs that the registry lacks, then the manifest
//! ```
//!
//! # Invariants
//! - There is no second copy: weights are written from the connection directly into blobs of the
//!   store.
//! - Fetched blobs stay for the next attempt, under a lease. A model gets its name only after all
//!   of its blobs are in the store and verified.
//! - A token is sent only to its own origin.

mod document;
mod hosts;
mod http_file;
mod hub;
mod hub_settings;
mod meter;
mod picture;
mod plan;
mod pull;
mod pull_external;
mod pull_through;
mod push;
mod refetch;
mod remote_blob;
mod repositories;
mod repository_target;
mod resolve;
mod search;
mod sync;
mod upstream;

pub use hosts::{HostSettingsOf, Hosts, RegistrySettings};
pub use hub::HubReference;
pub use hub_settings::HubSettings;
pub use meter::{BlobProgress, Meter};
pub use picture::fetch_picture;
pub use plan::subject_at_registry;
pub use pull::{Pulled, pull, pull_from_hub};
pub use pull_through::{BlobSharing, PullThrough};
pub use push::{Push, PushedBlob};
pub use refetch::Refetch;
pub use repositories::Repositories;
pub use search::{Offered, Search, search};
pub use sync::{SyncExecution, SyncSource, SyncTarget, SyncedTag, TagOutcome, sync};
pub use upstream::Upstream;
