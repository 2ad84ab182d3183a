//! `lode`: the command line and the daemon.
//!
//! ```text
//! cli ──HTTP──▶ daemon ──▶ ops ──▶ store, import, manifests
//!                  └──▶ scheduler ──▶ lode-runner (another process)
//! ```
//!
//! # Invariants
//! - A command is an HTTP client of the daemon; what it does is in `ops`.
//! - Only `config` reads the environment.
//! - This program does not link candle, does not tokenize and renders no template.

mod cli;
mod config;
mod size;
mod telemetry;

use std::process::ExitCode;

fn main() -> ExitCode {
    // TLS of every HTTP client and of the daemon; an error says that it was done before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    cli::main()
}
