//! The integration tests: one binary, so that the crates are linked once.

mod canonical_blobs;
mod gguf_corpus;
mod import_store;
mod safetensors_corpus;
mod support;
mod tidy;
