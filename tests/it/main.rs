//! The integration tests: one binary, so that the crates are linked once.

mod api;
mod canonical_blobs;
mod clients;
mod command_line;
mod conformance;
mod crash;
mod export;
mod fixture_models;
mod gateway;
mod ggml_types;
mod gguf_conversion;
mod gguf_corpus;
mod hostile;
mod import_store;
mod maintenance;
mod mlx_models;
mod mutations;
mod peers;
mod perplexity;
mod quant_vectors;
mod quantize;
mod quantized_imports;
mod real_registry;
mod safetensors_corpus;
#[cfg(target_os = "linux")]
mod scheduling;
mod server;
mod service;
mod smollm2;
mod stored;
mod support;
mod synthetic;
mod tidy;
mod transfer;
mod whole_gguf;
