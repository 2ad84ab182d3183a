//! `lode save` and `lode load`.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use api::lode::{LoadResponse, SaveRequest, SinceRequest};
use archive::{Kind, Reader, Writer};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use futures_util::StreamExt;
use indicatif::ProgressBar;
use manifests::Index;

use super::client::Client;
use super::progress;
use super::text::short;
use crate::config::Config;
use content::text::size;
use daemon::bridge::{self, ChannelWriter};

/// Arguments of `lode save`.
#[derive(Debug, Args)]
pub(super) struct SaveArguments {
    /// Names of the models
    #[arg(required = true)]
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    models: Vec<String>,
    /// Output file; `-` is standard output
    #[arg(short, long)]
    output: PathBuf,
    /// Omit the blobs of this model in the store, or of this earlier archive
    #[arg(long)]
    since: Option<String>,
}

/// Arguments of `lode load`.
#[derive(Debug, Args)]
pub(super) struct LoadArguments {
    /// A tar, a folder with an image layout, or `-` for a tar on standard input
    input: PathBuf,
    /// Name for the model, if the archive has only one
    #[arg(long)]
    name: Option<String>,
}

/// Buffer size for reading files, in bytes.
const PIECE: usize = 1 << 18;
/// Maximum size of `index.json` in bytes. Only blobs are longer.
const MAX_INDEX: u64 = manifests::MAX_MANIFEST as u64;

pub(super) async fn save(config: &Config, arguments: &SaveArguments) -> Result<()> {
    let to_stdout = arguments.output.as_os_str() == "-";
    ensure!(
        !to_stdout || !io::stdout().is_terminal(),
        "an archive cannot be printed on a terminal; redirect the output, or name a file with -o"
    );
    let since = arguments.since.as_deref().map(since).transpose()?;
    let request = SaveRequest { models: arguments.models.clone(), since };
    let response = Client::connect(config).await?.download("/api/save", &request).await?;
    let bar = progress::bytes()?;
    bar.set_length(response.content_length().unwrap_or_default());
    let mut stream = response.bytes_stream();
    let partial = partial(&arguments.output)?;
    let mut output: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout().lock())
    } else {
        Box::new(File::create(&partial).with_context(|| format!("cannot write `{}`", partial.display()))?)
    };
    let mut written = 0;
    let result: Result<()> = async {
        while let Some(piece) = stream.next().await {
            let piece = piece.context("the archive broke off; `lode fsck` tells whether a blob is damaged")?;
            output.write_all(&piece).context("cannot write the archive")?;
            written += piece.len() as u64;
            bar.set_position(written);
        }
        Ok(output.flush()?)
    }
    .await;
    bar.finish_and_clear();
    if to_stdout {
        result?;
    } else {
        // A partial archive must not have the name of a complete one.
        let done = result.and_then(|()| Ok(std::fs::rename(&partial, &arguments.output)?));
        done.inspect_err(|_| drop(std::fs::remove_file(&partial)))?;
    }
    eprintln!("saved {} ({})", arguments.models.join(", "), size(written));
    Ok(())
}

/// Returns the name of the file while it is incomplete.
fn partial(output: &Path) -> Result<PathBuf> {
    let mut name = output.file_name().context("the output is not a file")?.to_owned();
    name.push(".partial");
    Ok(output.with_file_name(name))
}

/// Parses `--since`: an archive if the text is the path of a file, else a model.
fn since(text: &str) -> Result<SinceRequest> {
    let path = Path::new(text);
    if !path.is_file() {
        return Ok(SinceRequest::Model(text.to_owned()));
    }
    let what = || format!("cannot read `{}` as an archive of models", path.display());
    let mut tar = Reader::new(io::BufReader::new(File::open(path).with_context(what)?));
    let (mut blobs, mut manifest) = (Vec::new(), None);
    while let Some(entry) = tar.next().with_context(what)? {
        if entry.kind == Kind::File && entry.path == "index.json" && entry.size <= MAX_INDEX {
            let mut raw = Vec::new();
            tar.read_to_end(&mut raw).with_context(what)?;
            let index = Index::parse(&raw).with_context(what)?;
            manifest = index.manifests().first().map(|entry| entry.digest().to_string());
        } else if let Some((algorithm, hex)) = entry.path.strip_prefix("blobs/").and_then(|rest| rest.split_once('/')) {
            blobs.push(format!("{algorithm}:{hex}"));
        }
    }
    Ok(SinceRequest::Archive { manifest: manifest.with_context(what)?, blobs })
}

pub(super) async fn load(config: &Config, arguments: &LoadArguments) -> Result<()> {
    let input = &arguments.input;
    let cannot = || format!("cannot read `{}`", input.display());
    let bar = ProgressBar::new_spinner();
    let (sender, receiver) = bridge::channel();
    let (path, counter) = (input.clone(), bar.clone());
    let source: Box<dyn Read + Send> = if input.as_os_str() == "-" {
        ensure!(!io::stdin().is_terminal(), "standard input is a terminal; name a file or a folder");
        Box::new(io::stdin())
    } else if input.is_dir() {
        ensure!(input.join("oci-layout").is_file(), "`{}` has no file `oci-layout`", input.display());
        Box::new(io::empty())
    } else {
        Box::new(File::open(input).with_context(cannot)?)
    };
    let client = Client::connect(config).await?;
    let reading = tokio::task::spawn_blocking(move || {
        let mut output = ChannelWriter::new(sender);
        let done = if path.is_dir() { pack(&path, &mut output) } else { copy(source, &mut output, &counter) };
        if let Err(error) = done {
            let kind = error.kind();
            output.fail(io::Error::new(kind, error.to_string()));
            return Err(error);
        }
        Ok(())
    });
    let query: Vec<(&str, &str)> = arguments.name.iter().map(|name| ("name", name.as_str())).collect();
    let body = reqwest::Body::wrap_stream(bridge::stream(receiver));
    let loaded: Result<LoadResponse> = client.upload("/api/load", &query, body).await;
    bar.finish_and_clear();
    match reading.await? {
        // The daemon stopped reading; its response gives the reason.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error).with_context(cannot),
        _ => {}
    }
    let loaded = loaded?;
    for model in &loaded.models {
        println!("{}", model.name);
        eprintln!("loaded '{}' ({})", model.name, short(&model.digest));
    }
    let (new, shared) = (size(loaded.new_bytes), size(loaded.shared_bytes));
    eprintln!("{} blobs ({new}) are new, {} ({shared}) were there", loaded.new_blobs, loaded.shared_blobs);
    Ok(())
}

fn copy(mut source: Box<dyn Read + Send>, output: &mut ChannelWriter, counter: &ProgressBar) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return output.flush(),
            Ok(n) => {
                output.write_all(&buffer[..n])?;
                counter.inc(n as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a folder with an image layout as a tar.
fn pack(folder: &Path, output: &mut ChannelWriter) -> io::Result<()> {
    let mut tar = Writer::new(output);
    for name in ["oci-layout", "index.json"] {
        member(&mut tar, folder, name)?;
    }
    for algorithm in ["sha256", "sha512"] {
        let blobs = folder.join("blobs").join(algorithm);
        if !blobs.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&blobs)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            member(&mut tar, folder, &format!("blobs/{algorithm}/{name}"))?;
        }
    }
    tar.finish().map(drop)
}

fn member(tar: &mut Writer<&mut ChannelWriter>, folder: &Path, name: &str) -> io::Result<()> {
    let mut file = File::open(folder.join(name))?;
    let size = file.metadata()?.len();
    tar.member(name, size)?;
    // The tar header has the size from before. If the file grows meanwhile, the additional bytes
    // are omitted.
    io::copy(&mut (&mut file).take(size), tar).map(drop)
}
