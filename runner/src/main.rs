//! `lode-runner`: maps the tensor blobs of one model and runs it.
//!
//! The daemon starts one process for each loaded model, with a Unix socket to serve on as its standard output (see
//! `lode-runner-protocol`) and a socket as its standard input, by which files come: when that closes, because the daemon ended
//! in whatever way, the runner ends too.
//!
//! ```text
//! serve ──▶ load ──▶ engine ──▶ decoder ──▶ layers ──▶ backend: cpu (mapped weights, our threads)
//! (HTTP)    (plan,    (slots) └──▶ cache                └─────▶ candle (tensors on any device)
//!    │      weights)
//!    ├──▶ model: tokenizer, template, stop strings
//!    └──▶ generate (sampler), evaluate, embed: what is done on a slot
//! ```
//!
//! # Invariants
//! - Weights on the CPU are mapped and not copied, but the smallest blobs where there are more than the system maps; private memory
//!   is KV cache, activations and the tokenizer.
//! - One thread computes, see [`engine`]; requests that run at the same time share its passes.
//! - There is one decoder, built from a blueprint, which names no architecture.
//! - Who computes is one of two [`backends`]; on the CPU's, decoder and sampler allocate nothing for a token but a block of states
//!   every 256 positions.
//! - `unsafe` is only in [`mapped`], in [`pool`], in [`renderer`], in the kernels of [`backends::cpu`], and in the tests that count allocations and
//!   pages.

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
mod embed;
mod engine;
mod evaluate;
mod failure;
mod files;
#[cfg(test)]
mod fixtures;
mod generate;
mod held;
mod holder;
mod isolation;
mod layers;
mod load;
#[cfg(test)]
mod made;
mod mapped;
mod memory;
mod model;
mod pool;
mod pooling;
mod pulse;
#[cfg(test)]
mod quantized_experts;
mod ranking;
mod read_ahead;
mod renderer;
mod rendering;
mod rerank;
#[cfg(test)]
mod residency;
mod sampler;
mod scorer;
mod sentence;
mod serve;
mod shorten;
mod stages;
mod weights;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use backends::cpu::Instructions;
use clap::Parser;
use renderer::{Renderer, Started};

/// Runs one model for the Lode daemon.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Threads that compute on the CPU, where that is not left to the machine.
    #[arg(long)]
    threads: Option<usize>,
    /// The instructions that kernels are made of, where that is not left to the machine.
    #[arg(long)]
    cpu: Option<String>,
    /// Say which devices there are to compute on, and end.
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "text")]
    devices: Option<Format>,
    /// Hold weights on GPUs for the daemon's runners; what nobody uses stays up to so many bytes of each, or a part of it.
    #[arg(long, value_name = "BYTES or N%")]
    hold: Option<holder::Keep>,
    /// Compile the kernels of GPUs for the device `emulated:N` into a folder, and end.
    #[arg(long, value_name = "FOLDER")]
    emulator: Option<std::path::PathBuf>,
    /// Give up other programs and changes of limits, once all has started.
    #[arg(long)]
    isolate: bool,
}

/// How devices are told.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// A line for each.
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
    // A log on a full disk must not end what is being said: by itself it would say so on standard error, and panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A file or a pipe gets no escape sequences.
    let log = if std::io::stderr().is_terminal() { log } else { log.with_ansi(false) };
    log.log_internal_errors(false).init();
    if let Some(folder) = arguments.emulator {
        return done(::device::compile_kernels(&folder));
    }
    if let Some(keep) = arguments.hold {
        if arguments.isolate {
            isolation::apply(isolation::Part::Runner);
        }
        return done(holder::run(keep));
    }
    // All before there are threads: each would keep what it could do.
    let threads = arguments.threads.unwrap_or_else(cpus::threads).max(1);
    let maps = mapped::most_maps();
    let renderer = match Renderer::start(arguments.isolate) {
        Ok(Started::Runner(renderer)) => Arc::new(renderer),
        Ok(Started::Nursery(status)) => return status,
        Err(error) => {
            tracing::error!("there is no process for templates: {error}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.isolate {
        isolation::apply(isolation::Part::Runner);
    }
    let chosen = arguments.cpu.as_deref().map_or_else(|| Ok(Instructions::best()), Instructions::named);
    let served = chosen.and_then(|instructions| serve::run(load::Machine { threads, maps, instructions, renderer }));
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
fn tell_devices(format: Format) -> ExitCode {
    let devices = device::survey();
    match format {
        Format::Text => print!("{}", device::table(&devices)),
        Format::Json => match serde_json::to_string_pretty(&devices) {
            Ok(text) => println!("{text}"),
            Err(_) => return ExitCode::FAILURE,
        },
    }
    ExitCode::SUCCESS
}
