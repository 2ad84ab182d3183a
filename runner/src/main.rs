//! `lode-runner`: maps the tensor blobs of one model and runs it.
//!
//! The daemon starts one process for each loaded model. The standard output of the process is a
//! Unix socket to serve on (see `lode-runner-protocol`). Its standard input is a socket through
//! which files arrive: when that closes, because the daemon ended for any reason, the runner ends
//! too.
//!
//! ```text
//! serve ──▶ load ──▶ engine ──▶ decoder ──▶ layers ──▶ backend: cpu (mapped weights, our threads)
//! (HTTP)    (plan,    (slots) └──▶ cache                └─────▶ candle (tensors on any device)
//!    │      weights)
//!    ├──▶ model: tokenizer, template, stop strings
//!    └──▶ generate (sampler), evaluate, embed: work on a slot
//! ```
//!
//! # Invariants
//! - Weights on the CPU are mapped and not copied, except for the smallest blobs if there are more
//!   blobs than the system can map. Private memory is KV caches, activations and the tokenizer.
//! - One thread computes, see [`engine`]; requests that run at the same time share its passes.
//! - There is one decoder, built from a blueprint, which names no architecture.
//! - One of two [`backends`] computes, or several devices with a range of layers each. On the CPU,
//!   decoder and sampler allocate nothing for a token, except for a block of states every 256
//!   positions.
//! - `unsafe` is only in [`mapped`], in [`text::renderer`], in [`backends::cpu`], in
//!   `device/cuda.rs`, and in the tests that count allocations and pages.

mod adapters;
#[cfg(test)]
mod allocations;
mod backend;
mod backends;
mod cache;
mod cpus;
mod decoder;
mod device;
#[cfg(test)]
mod device_speed;
mod documents;
mod embed;
mod engine;
mod evaluate;
mod failure;
mod files;
#[cfg(test)]
mod fixtures;
mod generate;
mod heartbeat;
mod holder;
mod holder_client;
mod isolation;
mod joined_lines;
mod layer_devices;
mod layers;
mod load;
mod load_resources;
mod mapped;
mod memory;
mod picture_reader;
mod picture_rows;
mod pooled_activation;
#[cfg(test)]
mod quantized_experts;
mod read_ahead;
mod rerank;
#[cfg(test)]
mod residency;
mod sampler;
mod serve;
#[cfg(test)]
mod synthetic_models;
mod text;
mod weights;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use kernels::instructions::Instructions;
use text::renderer::{ForkRole, Renderer};

/// Runs one model for the Lode daemon.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Number of threads that compute on the CPU; by default the number of usable cores.
    #[arg(long)]
    threads: Option<usize>,
    /// CPU instructions that the kernels use; by default the best available ones.
    #[arg(long)]
    cpu: Option<String>,
    /// Print the devices that can compute, and exit.
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "text")]
    devices: Option<ListFormat>,
    /// Hold weights on GPUs for the daemon's runners. On each GPU, keep up to this many bytes of
    /// unused weights, or this share of its memory.
    #[arg(long, value_name = "BYTES or N%")]
    hold: Option<holder::Keep>,
    /// Compile the GPU kernels for the device `emulated:N` into a folder, and exit.
    #[arg(long, value_name = "FOLDER")]
    emulator: Option<std::path::PathBuf>,
    /// Once everything has started, give up running other programs and changing limits.
    #[arg(long)]
    isolate: bool,
}

/// Output format of the list of devices.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ListFormat {
    /// One line for each device.
    Text,
    /// `protocol::Devices`.
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(format) = arguments.devices {
        return tell_devices(format);
    }
    let filter = tracing_subscriber::EnvFilter::try_from_env("LODE_LOG").unwrap_or_else(|_| "info".into());
    // A full disk must not interrupt logging code: by default, the subscriber would report the
    // failure on standard error, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Output to a file or a pipe has no escape sequences.
    let log = if std::io::stderr().is_terminal() { log } else { log.with_ansi(false) };
    log.log_internal_errors(false).init();
    if let Some(folder) = arguments.emulator {
        return done(::device::compile_kernels(&folder));
    }
    if let Some(keep) = arguments.hold {
        if arguments.isolate {
            isolation::apply(isolation::ProcessRole::Runner);
        }
        return done(holder::run(keep));
    }
    // All of this happens before there are other threads: each would keep its permissions.
    let threads = arguments.threads.unwrap_or_else(cpus::threads).max(1);
    let maps = mapped::most_maps();
    let renderer = match Renderer::start(arguments.isolate) {
        Ok(ForkRole::Runner(renderer)) => Arc::new(renderer),
        Ok(ForkRole::ForkServer(status)) => return status,
        Err(error) => {
            tracing::error!("there is no process for templates: {error}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.isolate {
        isolation::apply(isolation::ProcessRole::Runner);
    }
    let chosen = arguments.cpu.as_deref().map_or_else(|| Ok(Instructions::best()), Instructions::named);
    let served = chosen
        .and_then(|instructions| serve::run(load_resources::LoadResources { threads, maps, instructions, renderer }));
    done(served)
}

fn done(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn tell_devices(format: ListFormat) -> ExitCode {
    let devices = device::survey();
    match format {
        ListFormat::Text => print!("{}", device::table(&devices)),
        ListFormat::Json => match serde_json::to_string_pretty(&devices) {
            Ok(text) => println!("{text}"),
            Err(_) => return ExitCode::FAILURE,
        },
    }
    ExitCode::SUCCESS
}
