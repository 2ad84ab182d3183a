//! The integration tests: one binary, so that the crates are linked once.

mod api;
mod canonical_blobs;
mod clients;
mod command_line;
mod crash;
mod fixture_models;
mod gguf_corpus;
mod import_store;
mod maintenance;
mod safetensors_corpus;
mod server;
mod smollm2;
mod support;
mod tidy;
