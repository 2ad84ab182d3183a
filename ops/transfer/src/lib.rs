//! Models on their way between this store, registries and hubs.
//!
//! ```text
//! pull ──▶ resolve ──▶ blobs as they are      (ours, and Ollama's tensors)
//!             └──────▶ import where they lie  (files of other tools)      push ──▶ what the registry lacks
//! ```
//!
//! # Invariants
//! - No second copy: weights go from the connection into the store's blobs.
//! - What was fetched stays for the next attempt, under a lease; nothing has a name before all of it is here and was verified.
//! - A token goes to the origin that it is for, and nowhere else.

mod document;
mod hosts;
mod http_file;
mod hub;
mod meter;
mod plan;
mod pull;
mod pull_foreign;
mod push;
mod refetch;
mod remote;
mod repositories;
mod requests;
mod resolve;
mod search;
mod upstream;
mod windows;

pub use hosts::{HostSettingsOf, Hosts, RegistrySettings};
pub use hub::HubReference;
pub use meter::{BlobProgress, Meter};
pub use plan::subject_at_registry;
pub use pull::{HubSettings, Pulled, pull, pull_from_hub};
pub use push::{Push, PushedBlob};
pub use refetch::Refetch;
pub use repositories::Repositories;
pub use search::{Offered, Search, search};
pub use upstream::Upstream;
