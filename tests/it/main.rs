//! The integration tests. They are one binary, so that the crates are linked once.

mod abuse;
mod access;
mod adapters;
mod adopt;
mod api;
mod benchmarks;
mod breakout;
mod browser;
mod canonical_blobs;
mod cases2026;
mod circles;
mod clients;
mod command_line;
mod config_keys;
mod conformance;
mod context;
mod conversations;
mod crash;
mod derived;
mod devices;
mod engine;
mod export;
#[cfg(target_os = "linux")]
mod faults;
mod first_minute;
mod fixture_models;
mod fleet;
mod gateway;
mod gemma3;
mod ggml_types;
mod gguf_conversion;
mod gguf_corpus;
mod gguf_models;
mod guard;
mod histories;
mod hostile;
mod import_store;
mod maintenance;
mod memory_vectors;
mod mlx_models;
mod model_lists;
mod mutations;
mod names;
mod nesting;
mod ollama;
mod openai;
mod openapi;
mod operation;
mod page;
mod peers;
mod perplexity;
mod pictures;
mod plan;
mod port;
#[cfg(target_os = "linux")]
mod power;
mod prose;
mod quant_vectors;
mod quantize;
mod quantized_imports;
#[cfg(target_os = "linux")]
mod read_only;
mod real_registry;
#[cfg(target_os = "linux")]
mod reliability;
mod replicas;
mod rerank;
mod roots;
mod rust_source;
mod safetensors_corpus;
#[cfg(target_os = "linux")]
mod scheduling;
mod sentences;
mod server;
mod service;
#[cfg(target_os = "linux")]
mod shim;
mod siblings;
mod smollm2;
#[cfg(target_os = "linux")]
mod soak;
mod sources;
mod store_0_1;
mod stored;
mod support;
mod synthetic;
mod tidy;
mod tier;
mod token_tables;
mod transfer;
mod whole_gguf;
mod zoo2026;
