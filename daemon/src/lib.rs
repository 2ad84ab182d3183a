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
mod body;
pub mod bridge;
mod budget;
mod call;
mod choices;
mod clock;
mod cloud;
mod collections;
mod connections;
mod control_groups;
mod create;
mod daemon;
mod describe;
mod embed;
mod error;
mod generate;
mod guard;
mod handed;
mod headers;
mod health;
mod jobs;
mod llama_server;
mod lm_studio;
mod load_blobs;
mod maintenance;
mod markdown;
mod metrics;
mod models;
mod openai;
mod openapi;
mod own_log;
mod page;
mod perplexity;
mod pieces;
mod preload;
mod query;
mod rates;
mod rerank;
mod room;
mod routes;
mod running;
mod search;
mod serve;
mod settings;
mod sse;
mod stream;
mod threads;
mod tls;
mod tokens;
mod transfer;
mod uploads;

pub use guard::Scope;
pub use guard::keys::make as make_key;
pub use handed::hand_over;
pub use own_log::file as log_file;
pub use serve::run;
pub use settings::{RegistryAccess, Settings};
pub use threads::scarce_threads;
pub use tls::TlsFiles;
