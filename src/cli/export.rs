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

use self::folder::Placed;
use self::staging::Staging;
use super::client::Client;
use super::{Interrupted, progress};
use crate::config::Config;
use crate::size::bytes;
use content::text::size;
use daemon::bridge::{self, ChannelReader, Chunk};

/// Arguments of `lode export`.
#[derive(Debug, Args)]
pub(super) struct ExportArguments {
    /// Name of the model
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    model: String,
    /// Output folder, or file name for a model that is a single file
    #[arg(long, value_name = "DIR|FILE")]
    to: PathBuf,
    /// Format of the files
    #[arg(long, value_enum, default_value_t)]
    format: ExportedFormat,
    /// Type of floating-point tensors, for safetensors and gguf; quantized tensors become BF16 in
    /// safetensors by default
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Maximum bytes of tensors in one file, for safetensors and mlx, e.g. 5GB or 500MiB
    #[arg(long, value_parser = bytes)]
    shard_size: Option<u64>,
    /// Export even if information is lost
    #[arg(long)]
    lossy: bool,
    /// Replace existing files
    #[arg(long)]
    force: bool,
}

/// Format of an export.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ExportedFormat {
    /// The imported files, bit for bit
    #[default]
    Origin,
    /// A Hugging Face folder
    Safetensors,
    /// One GGUF file
    Gguf,
    /// A model folder for MLX
    Mlx,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    F32,
    F16,
    Bf16,
}

/// Buffer size for copying, in bytes.
const PIECE: usize = 1 << 18;

pub(super) async fn run(config: &Config, arguments: &ExportArguments) -> Result<()> {
    // From here on, an interrupt does not end the process, which must clean up first.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let staging = Staging::begin(&arguments.to, arguments.force)?;
    let client = Client::connect(config).await?;
    let request = request(arguments);
    let response = tokio::select! {
        response = client.download("/api/export", &request) => response,
        _ = interrupts.recv() => return Err(Interrupted.into()),
    };
    let response = match response {
        // An export that fails at once breaks the connection before the response.
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
        // The connection may break after the end of the tar: all files are complete and in place.
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
            ExportedFormat::Origin => ExportFormat::Origin,
            ExportedFormat::Safetensors => ExportFormat::Safetensors,
            ExportedFormat::Gguf => ExportFormat::Gguf,
            ExportedFormat::Mlx => ExportFormat::Mlx,
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

/// How the transfer ended.
enum Sent {
    /// The stream is complete, or the receiver needs no more.
    All,
    Broken(reqwest::Error),
    Interrupted,
}

/// Unpacks the stream until it ends or the user interrupts it. Returns both results, because the
/// files may be complete even if the stream broke off.
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
        // The interrupt comes first, because the other branch may always be ready.
        biased;
        _ = interrupts.recv() => {
            stop.store(true, Ordering::SeqCst);
            Sent::Interrupted
        }
        // `sender` lives until the error that ended the stream is sent.
        sent = forward(response, &sender, bar) => sent,
    };
    drop(sender);
    // Writing to disk may take longer than receiving.
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

/// Forwards the response body to the unpacking thread.
async fn forward(response: Response, sender: &mpsc::Sender<Chunk>, bar: &ProgressBar) -> Sent {
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
                // The send fails if the receiver has ended, which needs no error.
                let _ = sender.send(Err(io::Error::other("the export broke off"))).await;
                return Sent::Broken(error);
            }
        }
    }
}

/// Returns why an export broke off. A broken stream cannot carry the reason, so this requests a
/// check.
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

/// Unpacks the files of the tar until it ends or `stop` is set.
fn unpack(receiver: mpsc::Receiver<Chunk>, staging: &mut Staging, stop: &AtomicBool) -> Result<()> {
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
