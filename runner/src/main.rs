//! `lode-runner`: maps the tensor blobs of one model and runs it.
//!
//! The daemon starts one process for each loaded model, with a Unix socket to serve on (see `lode-runner-protocol`) and
//! a pipe on standard input: when that closes, because the daemon ended in whatever way, the runner ends too.
//!
//! ```text
//! serve ──▶ load ──▶ model ──▶ engine ──▶ decoder ──▶ layers ──▶ kernels
//! (HTTP)    (plan,     │      (slots) └──▶ cache             (mapped weights)
//!    │      weights)   └ prompt: tokenizer, template, stop strings
//!    └──▶ generate (sampler), evaluate, embed: what is done on a slot
//! ```
//!
//! # Invariants
//! - Weights on the CPU are mapped and never copied; private memory is KV cache, activations and the tokenizer.
//! - One thread computes, see [`engine`]; requests that run at the same time share its passes.
//! - There is one decoder, built from a blueprint, which names no architecture.
//! - `unsafe` is only in [`mapped`] and in the kernels.

mod adapters;
mod cache;
mod decoder;
mod device;
mod embed;
mod engine;
mod evaluate;
mod generate;
mod isolation;
mod kernels;
mod layers;
mod load;
mod mapped;
mod memory;
mod model;
mod pooling;
mod sampler;
mod serve;
mod weights;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Runs one model for the Lode daemon.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The Unix socket to serve the runner protocol on.
    #[arg(long)]
    socket: PathBuf,
    #[command(flatten)]
    isolation: isolation::Isolation,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("LODE_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    // Before there are threads: each would keep what it could do.
    arguments.isolation.apply(&arguments.socket);
    match serve::run(&arguments.socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
