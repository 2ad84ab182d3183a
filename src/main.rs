//! `lode`: the command line and the daemon.
//!
//! ```text
//! cli ──HTTP──▶ daemon ──▶ ops ──▶ store, import, manifests
//!                  └──▶ scheduler ──▶ lode-runner (another process)
//! ```
//!
//! # Invariants
//! - A command is an HTTP client of the daemon; the operations are in `ops`.
//! - Only `config` reads the environment.
//! - This program does not link candle, does not tokenize and renders no template.

mod cli;
mod config;
mod size;
mod telemetry;
mod time_span;

use std::process::ExitCode;

/// A daemon with many models reads all of their documents on many threads and frees them again.
/// glibc keeps the peak memory of each of its arenas: with 10,000 models 1.7 GB after half an hour,
/// of which 150 MB were in use. jemalloc returns it to the system within seconds.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The TLS provider of all HTTP clients and the daemon. An error means that it is already
    // installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    cli::main()
}
