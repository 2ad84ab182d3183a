//! `lode create`.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use api::lode::{PlannedTensor, QuantizePlan, SocketResponse};
use api::ollama::{CreateRequest, License, Progress};
use clap::Args;
use manifests::ModelRef;

use super::client::Client;
use super::text::{plain, table};
use super::{Format, adapter, progress, transfer};
use crate::config::Config;
use api::modelfile::Modelfile;
use content::text::size;

/// Arguments of `lode create`.
#[derive(Debug, Args)]
pub(super) struct CreateArguments {
    /// Name of the new model
    name: String,
    /// A Modelfile, a GGUF file, or a folder with safetensors files
    #[arg(short, long, default_value = "Modelfile")]
    file: PathBuf,
    /// Do not copy the tensors, but read them where they are in the file or folder
    #[arg(long, conflicts_with = "quantize")]
    in_place: bool,
    #[command(flatten)]
    quantize: QuantizeArguments,
}

/// Options for quantizing tensors.
#[derive(Debug, Args)]
#[command(next_help_heading = "Quantization")]
struct QuantizeArguments {
    /// Quantize to this type, e.g. `int4`, `int4:64`, `int8`, `nvfp4`, `mxfp8`, `q8_0` or `q4_k_m`
    #[arg(short, long, value_name = "TYPE")]
    quantize: Option<String>,
    /// File with rules that take precedence over the rules of the type
    #[arg(long, value_name = "FILE", requires = "quantize")]
    policy: Option<PathBuf>,
    /// Also encode tensors that are already quantized, which loses more than starting from floats
    #[arg(long, requires = "quantize")]
    requantize: bool,
    /// Compute all results again, and compare them with the cached ones
    #[arg(long, requires = "quantize")]
    no_cache: bool,
    /// Only show the encoding that each tensor would get
    #[arg(long, requires = "quantize")]
    dry_run: bool,
    /// Output format of a dry run
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Maximum size of a Modelfile in bytes; a longer file is not one.
const MAX_MODELFILE: u64 = 1 << 20;

pub(super) async fn run(config: &Config, arguments: &CreateArguments) -> Result<()> {
    // Fails on an invalid name before any file is opened.
    arguments.name.parse::<ModelRef>()?;
    let (request, adapters) = request(arguments)?;
    ensure!(
        !arguments.in_place || request.path.is_some(),
        "--in-place uses the tensors of a file or folder; this Modelfile names a model, whose tensors are in the store already"
    );
    let request = CreateRequest { in_place: arguments.in_place, ..request };
    let request = with_quantization(request, &arguments.quantize)?;
    let client = Client::connect(config).await?;
    if request.dry_run {
        let request = with_files(request, config, &client).await?;
        let plan: QuantizePlan = client.post("/api/create", &request).await?;
        return show(&plan, arguments.quantize.format);
    }
    let request = CreateRequest { adapters: adapter::uploaded(&client, &adapters).await?, ..request };
    // Last, because the daemon keeps passed files for one minute only.
    let request = with_files(request, config, &client).await?;
    send(&client, &request).await
}

/// Sends the request and shows the progress, until the model has its name.
pub(super) async fn send(client: &Client, request: &CreateRequest) -> Result<()> {
    let bar = progress::bytes()?;
    let mut last = String::new();
    let shown = async |response| {
        let told = client.lines_of(response, |line: Progress| {
            last.clone_from(&line.status);
            match (line.total, line.completed) {
                (Some(total), Some(completed)) => {
                    progress::advance(&bar, plain(&line.status).into_owned(), total, completed);
                }
                _ => bar.suspend(|| eprintln!("{}", plain(&line.status))),
            }
            for warning in &line.warnings {
                bar.suspend(|| eprintln!("warning: {}", plain(warning)));
            }
            Ok(())
        });
        told.await
    };
    let result = transfer::until_interrupted(client.download("/api/create", request), "create", shown).await;
    bar.finish_and_clear();
    result?;
    ensure!(last == "success", "the create broke off after `{last}`");
    Ok(())
}

/// Returns the request and the paths of the adapters to send before it.
fn request(arguments: &CreateArguments) -> Result<(CreateRequest, Vec<PathBuf>)> {
    let file = &arguments.file;
    let metadata = std::fs::metadata(file)
        .with_context(|| format!("cannot find `{}`; -f names the Modelfile, file or folder", file.display()))?;
    let base = CreateRequest { model: arguments.name.clone(), stream: Some(true), ..CreateRequest::default() };
    let is_pipe = !metadata.is_dir() && !metadata.is_file();
    ensure!(
        !(is_pipe && is_weights(file)),
        "`{}` is a pipe or a device; a model is read in many places at once, so give a file or a folder",
        file.display()
    );
    if metadata.is_dir() || is_weights(file) || metadata.len() > MAX_MODELFILE {
        return Ok((CreateRequest { path: Some(absolute(file)?), ..base }, Vec::new()));
    }
    let bytes = std::fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))?;
    let read = Modelfile::decode(&bytes).and_then(|text| Modelfile::parse(&text));
    let modelfile = read.with_context(|| format!("`{}` is not a Modelfile", file.display()))?;
    if let Some(version) = &modelfile.requires {
        eprintln!("note: the Modelfile requires Ollama {version}; Lode ignores this");
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    let adapters = modelfile.adapters.iter().map(|adapter| folder.join(adapter)).collect();
    let projector = projector(&modelfile, folder)?;
    let request = CreateRequest { projector, ..from_modelfile(modelfile, folder, base)? };
    ensure!(
        request.projector.is_none() || request.path.is_some(),
        "FROM names a model of the store and a projector; name the model's file, or create the model from both files"
    );
    Ok((request, adapters))
}

/// Returns the path of the projector that a second FROM names.
fn projector(modelfile: &Modelfile, folder: &Path) -> Result<Option<String>> {
    let [further] = modelfile.more.as_slice() else {
        ensure!(
            modelfile.more.is_empty(),
            "there are {} FROM lines, expected a model and a projector",
            modelfile.more.len() + 1
        );
        return Ok(None);
    };
    absolute(&folder.join(further)).map(Some)
}

/// Opens the files of the request with the user's permissions and passes them to the daemon. If the
/// daemon is on another machine or its socket is not reachable, the request keeps the path, which
/// the daemon opens itself.
pub(super) async fn with_files(request: CreateRequest, config: &Config, client: &Client) -> Result<CreateRequest> {
    let Some(path) = request.path.clone() else { return Ok(request) };
    let projector = request.projector.clone();
    let address = config.daemon.address.ip();
    if !address.is_loopback() && !address.is_unspecified() {
        return Ok(request);
    }
    let Some(socket) = reachable_socket(client, &path).await else { return Ok(request) };
    let work = move || -> Result<String> {
        let mut files = import::locate(Path::new(&path))?;
        if let Some(path) = projector {
            import::add_projector(&mut files, import::locate(Path::new(&path))?)?;
        }
        let files: Vec<_> = files.into_iter().map(|file| (file.name, PathBuf::from(file.source.name()))).collect();
        hand_over(&socket, &files)
    };
    let token = tokio::task::spawn_blocking(work).await??;
    Ok(CreateRequest { path: None, projector: None, handed: Some(token), ..request })
}

/// Passes files under the names that they have in the model.
///
/// # Errors
/// The daemon is on another machine, or its socket is not reachable.
pub(super) async fn with_named_files(
    request: CreateRequest,
    files: &[(String, PathBuf)],
    config: &Config,
    client: &Client,
) -> Result<CreateRequest> {
    let address = config.daemon.address.ip();
    let is_here = address.is_loopback() || address.is_unspecified();
    let socket = if is_here { reachable_socket(client, "the files").await } else { None };
    let socket =
        socket.context("the daemon must be on this machine, with a socket that this user can reach (LODE_SOCKET)")?;
    let files = files.to_vec();
    let token = tokio::task::spawn_blocking(move || hand_over(&socket, &files)).await??;
    Ok(CreateRequest { handed: Some(token), ..request })
}

/// Returns the daemon's socket, if this user can connect to it. `what` is not passed otherwise.
async fn reachable_socket(client: &Client, what: &str) -> Option<PathBuf> {
    // The daemon is older, or the API key lacks permission. In the second case, the create request
    // fails with that error.
    let socket: SocketResponse = client.get("/api/lode/socket").await.ok()?;
    let socket = PathBuf::from(socket.path);
    match std::os::unix::net::UnixStream::connect(&socket) {
        Ok(_) => Some(socket),
        Err(error) => {
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                eprintln!(
                    "note: `{}` is for the daemon's user, so the daemon opens `{what}` itself; LODE_SOCKET_SHARED=1 and a LODE_SOCKET \
                     that all users can reach let it take your files",
                    socket.display()
                );
            }
            None
        }
    }
}

/// Opens files and passes them to the daemon; returns the token for the request.
fn hand_over(socket: &Path, files: &[(String, PathBuf)]) -> Result<String> {
    let open = |(name, path): &(String, PathBuf)| {
        // Without `O_NONBLOCK`, opening a pipe waits for a writer. The daemon refuses pipes.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = std::fs::File::options().read(true).custom_flags(flags).open(path);
        Ok((name.clone(), opened.with_context(|| format!("cannot open `{}`", path.display()))?))
    };
    let files = files.iter().map(open).collect::<Result<Vec<_>>>()?;
    let handed = daemon::hand_over(socket, &files);
    handed.with_context(|| format!("cannot hand files over to the daemon at `{}`", socket.display()))
}

fn with_quantization(request: CreateRequest, arguments: &QuantizeArguments) -> Result<CreateRequest> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read the policy `{}`", path.display()))
    };
    Ok(CreateRequest {
        quantize: arguments.quantize.clone(),
        policy: arguments.policy.as_ref().map(read).transpose()?,
        requantize: arguments.requantize,
        no_cache: arguments.no_cache,
        dry_run: arguments.dry_run,
        ..request
    })
}

fn show(plan: &QuantizePlan, format: Format) -> Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(plan)?);
        return Ok(());
    }
    let row = |tensor: &PlannedTensor| {
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        let to = match &tensor.reason {
            Some(reason) => format!("{} ({reason})", tensor.to),
            None => tensor.to.clone(),
        };
        let shape = format!("[{}]", shape.join(", "));
        vec![tensor.name.clone(), shape, tensor.from.clone(), to, size(tensor.before), size(tensor.after)]
    };
    let rows: Vec<Vec<String>> = plan.tensors.iter().map(row).collect();
    table(&["TENSOR", "SHAPE", "FROM", "TO", "BEFORE", "AFTER"], &rows);
    for rule in &plan.unused_rules {
        eprintln!("no tensor meets the policy's {rule}");
    }
    let QuantizePlan { encoded, kept, dropped, before, after, .. } = *plan;
    let left_out = if dropped > 0 { format!(", {dropped} left out") } else { String::new() };
    eprintln!("{encoded} tensors are quantized, {kept} kept{left_out}: {} become {}", size(before), size(after));
    Ok(())
}

fn is_weights(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "gguf" || extension == "safetensors")
}

fn absolute(path: &Path) -> Result<String> {
    let path = std::fs::canonicalize(path).with_context(|| format!("cannot find `{}`", path.display()))?;
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("the path `{}` is not UTF-8", path.display()),
    }
}

/// Creates the request. `FROM` is a path relative to the Modelfile if it looks like a path or
/// exists; else it is a model.
fn from_modelfile(modelfile: Modelfile, folder: &Path, base: CreateRequest) -> Result<CreateRequest> {
    let local = folder.join(&modelfile.from);
    let looks_like_path = modelfile.from.starts_with(['.', '/', '~']) || is_weights(Path::new(&modelfile.from));
    let (path, from) =
        if local.exists() || looks_like_path { (Some(absolute(&local)?), None) } else { (None, Some(modelfile.from)) };
    let message = |(role, content)| protocol::Message { role, content, rest: serde_json::Map::new() };
    Ok(CreateRequest {
        path,
        from,
        template: modelfile.template,
        renderer: modelfile.renderer,
        parser: modelfile.parser,
        system: modelfile.system,
        license: Some(License::Several(modelfile.licenses)).filter(|l| *l != License::Several(Vec::new())),
        parameters: modelfile.parameters,
        messages: modelfile.messages.into_iter().map(message).collect(),
        ..base
    })
}
