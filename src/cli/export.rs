//! `lode export`.

mod folder;
mod staging;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use api::lode::{ExportDtype, ExportFormat, ExportRequest};
use archive::{Kind, Reader};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use content::{Algorithm, Hasher};
use futures_util::StreamExt;
use indicatif::ProgressBar;
use reqwest::Response;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use self::staging::{Placed, Staging};
use super::client::Client;
use super::{Interrupted, progress};
use crate::config::Config;
use crate::size::bytes;
use content::text::size;
use daemon::bridge::{self, ChannelReader, Piece};

/// Arguments of `lode export`.
#[derive(Debug, Args)]
pub(super) struct ExportArguments {
    /// Name of the model
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    model: String,
    /// A folder, or the name of the file where the model is a single one
    #[arg(long, value_name = "DIR|FILE")]
    to: PathBuf,
    /// Which files: those that were imported, or others
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// What floats are written as, by safetensors and gguf; quantized weights become BF16 in safetensors where nothing is said
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// The most bytes of tensors in one file, by safetensors and mlx, e.g. 5GB or 500MiB
    #[arg(long, value_parser = bytes)]
    shard_size: Option<u64>,
    /// Go on where something would be lost
    #[arg(long)]
    lossy: bool,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

/// Which files a model becomes.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Format {
    /// Those that were imported, bit for bit
    #[default]
    Origin,
    /// A Hugging Face folder
    Safetensors,
    /// One GGUF file
    Gguf,
    /// A folder for MLX
    Mlx,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    F32,
    F16,
    Bf16,
}

/// How much is copied at a time, in bytes.
const PIECE: usize = 1 << 18;

pub(super) async fn run(config: &Config, arguments: &ExportArguments) -> Result<()> {
    // From here on an interrupt does not end the process, which has to clean up.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let staging = Staging::begin(&arguments.to, arguments.force)?;
    let client = Client::connect(config).await?;
    let request = request(arguments);
    let response = tokio::select! {
        response = client.download("/api/export", &request) => response,
        _ = interrupts.recv() => return Err(Interrupted.into()),
    };
    let response = match response {
        // What breaks off at once does so before there is an answer.
        Err(error) if error.chain().any(<dyn std::error::Error>::is::<reqwest::Error>) => {
            return Err(reason(&client, request, error, &mut interrupts).await);
        }
        response => response?,
    };
    let total = response.content_length().unwrap_or_default();
    staging.ensure_space(total)?;
    let bar = progress::bytes()?;
    bar.set_length(total);
    let (unpacked, sent) = receive(response, staging, &bar, &mut interrupts).await?;
    bar.finish_and_clear();
    let placed = match (unpacked, sent) {
        // Whatever came after the end of the tar: every file is whole and in its place.
        (Ok(placed), _) => placed,
        (Err(_), Sent::Interrupted) => return Err(Interrupted.into()),
        (Err(_), Sent::Broken(error)) => {
            return Err(reason(&client, request, error.into(), &mut interrupts).await);
        }
        (Err(error), Sent::All) => return Err(error),
    };
    for file in &placed {
        println!("{}  {}", file.digest.hex(), file.name);
    }
    let written = placed.iter().map(|file| file.size).sum();
    eprintln!("exported {} to {} ({})", arguments.model, arguments.to.display(), size(written));
    Ok(())
}

fn request(arguments: &ExportArguments) -> ExportRequest {
    ExportRequest {
        model: arguments.model.clone(),
        format: match arguments.format {
            Format::Origin => ExportFormat::Origin,
            Format::Safetensors => ExportFormat::Safetensors,
            Format::Gguf => ExportFormat::Gguf,
            Format::Mlx => ExportFormat::Mlx,
        },
        dtype: arguments.dtype.map(|dtype| match dtype {
            Dtype::F32 => ExportDtype::F32,
            Dtype::F16 => ExportDtype::F16,
            Dtype::Bf16 => ExportDtype::Bf16,
        }),
        shard_size: arguments.shard_size,
        lossy: arguments.lossy,
        check: false,
    }
}

/// How a stream ended.
enum Sent {
    /// It was whole, or whoever receives it wants no more.
    All,
    Broken(reqwest::Error),
    Interrupted,
}

/// Unpacks what comes, until it ends or the user has had enough. Both ends are told: what came may be whole though the
/// stream was not.
async fn receive(
    response: Response,
    mut staging: Staging,
    bar: &ProgressBar,
    interrupts: &mut Signal,
) -> Result<(Result<Vec<Placed>>, Sent)> {
    let (sender, receiver) = bridge::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let mut unpacking = tokio::task::spawn_blocking(move || {
        unpack(receiver, &mut staging, &stopped)?;
        staging.finish()
    });
    let mut sent = tokio::select! {
        // First, because there may always be a next piece.
        biased;
        _ = interrupts.recv() => {
            stop.store(true, Ordering::SeqCst);
            Sent::Interrupted
        }
        // The sender is kept until it was said why nothing more comes.
        sent = forward(response, &sender, bar) => sent,
    };
    drop(sender);
    // Writing to the disk may take longer than receiving.
    let unpacked = tokio::select! {
        unpacked = &mut unpacking => unpacked,
        _ = interrupts.recv() => {
            stop.store(true, Ordering::SeqCst);
            sent = Sent::Interrupted;
            unpacking.await
        }
    };
    Ok((unpacked?, sent))
}

/// Gives what comes to whoever unpacks it.
async fn forward(response: Response, sender: &mpsc::Sender<Piece>, bar: &ProgressBar) -> Sent {
    let mut stream = response.bytes_stream();
    loop {
        match stream.next().await {
            None => return Sent::All,
            Some(Ok(piece)) => {
                bar.inc(piece.len() as u64);
                if sender.send(Ok(piece)).await.is_err() {
                    return Sent::All;
                }
            }
            Some(Err(error)) => {
                // Where nobody receives any more nobody needs to know.
                let _ = sender.send(Err(io::Error::other("the export broke off"))).await;
                return Sent::Broken(error);
            }
        }
    }
}

/// Why an export broke off. A stream that breaks off cannot say it, so it is asked for.
async fn reason(
    client: &Client,
    request: ExportRequest,
    error: anyhow::Error,
    interrupts: &mut Signal,
) -> anyhow::Error {
    let request = ExportRequest { check: true, ..request };
    let checked = tokio::select! {
        checked = client.post::<Value>("/api/export", &request) => checked,
        _ = interrupts.recv() => return Interrupted.into(),
    };
    match checked {
        Err(reason) => reason.context("the export broke off, nothing was written"),
        Ok(_) => error.context("the connection broke off, nothing was written; try again"),
    }
}

/// Takes the files out of the tar, until it ends or is told to stop.
fn unpack(receiver: mpsc::Receiver<Piece>, staging: &mut Staging, stop: &AtomicBool) -> Result<()> {
    let mut tar = Reader::new(ChannelReader::new(receiver));
    while let Some(entry) = tar.next()? {
        if entry.kind != Kind::File {
            continue;
        }
        let name = import::relative_name(&entry.path)?;
        let mut file = staging.file(&name)?;
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut buffer = vec![0; PIECE];
        loop {
            refuse_when(stop)?;
            let n = tar.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            file.write_all(&buffer[..n]).with_context(|| format!("cannot write `{name}`"))?;
        }
        file.sync_all().with_context(|| format!("cannot write `{name}`"))?;
        staging.staged(Placed { name, size: entry.size, digest: hasher.finish() });
    }
    refuse_when(stop)?;
    Ok(())
}

fn refuse_when(stop: &AtomicBool) -> Result<(), Interrupted> {
    if stop.load(Ordering::SeqCst) { Err(Interrupted) } else { Ok(()) }
}
