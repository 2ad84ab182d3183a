//! The daemon: serves the HTTP APIs over the store and the scheduler.
//!
//! ```text
//! connection ──▶ guard ──▶ routes ──▶ handler ──▶ ops (library, build, transfer, upkeep)
//!                                        └──────▶ call ──▶ scheduler ──▶ runner
//! ```
//!
//! # Invariants
//! - The table in [`routes`] lists everything that is served; router, scopes and the `OpenAPI`
//!   document are made from it.
//! - The daemon survives any exit of a runner, does not link candle, does not tokenize, and renders
//!   no template.

mod access;
mod acquire;
mod activation;
mod anthropic;
mod arriving;
mod bandwidth;
mod batches;
mod body;
pub mod bridge;
mod budget;
mod call;
mod chat;
mod clock;
mod cloud;
mod collections;
mod connections;
mod context_growth;
mod control_groups;
mod create;
mod create_request;
mod daemon;
mod embed;
mod error;
mod generate;
mod guard;
mod headers;
mod health;
mod job_routes;
mod job_tasks;
mod jobs;
mod llama_server;
mod lm_studio;
mod load_blobs;
mod log_rotation;
mod long_tasks;
mod maintenance;
mod markdown;
mod metrics;
mod model_documents;
mod models;
mod openai;
mod openapi;
mod page;
mod parallel_generations;
mod perplexity;
mod preload;
mod query;
mod rates;
mod registry_journal;
mod registry_retention;
mod registry_sync;
mod remote_pictures;
pub mod replica;
mod rerank;
mod routes;
mod running;
mod search;
mod serve;
mod settings;
mod socket_uploads;
mod sse;
mod stream;
mod threads;
mod tiering;
mod tls;
mod tokens;
mod trace_context;
mod transfer;
mod uploads;

pub use bandwidth::{BandwidthSchedule, TimeLimit};
pub use guard::Scope;
pub use guard::keys::make as make_key;
pub use log_rotation::file as log_file;
pub use registry_journal::webhooks;
pub use registry_retention::response as retention_response;
pub use serve::run;
pub use settings::{RegistryAccess, RegistryPolicy, Settings, TierPlace, TierSettings};
pub use socket_uploads::hand_over;
pub use threads::scarce_threads;
pub use tls::TlsFiles;
