//! `/api/create`: creates and quantizes models.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use api::lode::{PlannedTensor, QuantizePlan, SocketResponse};
use api::ollama::{CreateRequest, ErrorResponse, License, Progress};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use content::operation::{ErrorClass, OperationError, RemoteClass, Unclassified};
use content::{Amount, Digest, Observer, text};
use import::{Decision, NamedFile, Policy, Quantization, Reason, Reuse, Scheme, Sources, TensorRow, UserPolicy};

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::{Caller, Scope};
use crate::models::{blocking, named, reference};
use crate::stream::{Lines, lines};
use crate::transfer::pull_base;
use crate::uploads;
use build::{CreateSpec, Created, QuantizeSpec, Source};

/// Number of bytes between two progress lines.
const STEP: u64 = 16 << 20;

pub(crate) async fn create(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CreateRequest>,
) -> Result<Response, Failed> {
    let streams = request.stream.unwrap_or(true);
    let dry_run = request.dry_run;
    let base = request.from.clone();
    let (_, unknown) = api::ollama::Options::read(&request.parameters).map_err(Failed::bad_request)?;
    let own = daemon.clone();
    let spec = tokio::task::spawn_blocking(move || spec(&own, request, &caller)).await;
    let spec =
        spec.map_err(|e| Failed::from(OperationError::text(format!("the create ended unexpectedly: {e}"))))??;
    if dry_run {
        return plan(&daemon, spec).await;
    }
    let (lines, response) = lines();
    let work = tokio::spawn(work(daemon, spec, base, lines.clone(), streams));
    if streams {
        tokio::spawn(async move {
            let done = work.await.map_err(|e| OperationError::text(format!("the create ended unexpectedly: {e}")));
            tell(&lines, done.and_then(|done| done), &unknown).await;
        });
        return Ok(response);
    }
    let done = work
        .await
        .map_err(|e| OperationError::text(format!("the create ended unexpectedly: {e}")))
        .map_err(Failed::from)?;
    done?;
    Ok(Json(Progress::success(&unknown)).into_response())
}

/// Creates the model. If its base model `base` is missing, pulls it first.
async fn work(
    daemon: Daemon,
    spec: CreateSpec,
    base: Option<String>,
    lines: Lines,
    streams: bool,
) -> content::operation::Result<Created> {
    if let Some(base) = missing(&daemon, &spec, base).await? {
        match pull_base(&daemon, &base, &lines, streams).await {
            Some(pulled) => pulled.map_err(|error| absent(base, error))?,
            None => content::bail!("the client is gone"),
        }
    }
    let step = if spec.quantize.is_some() { "quantizing tensors" } else { "importing tensors" };
    let turn = daemon.jobs.turn().await.map_err(|failed| OperationError::text(failed.message))?;
    let (sent, library, collections) = (uploaded_blobs(&spec), daemon.library.clone(), daemon.collections.clone());
    let work = turn.run(move || {
        let observer = Reporter { lines, streams, step, told: AtomicU64::new(0) };
        let work = std::panic::AssertUnwindSafe(|| build::create(&daemon.library, &spec, &observer));
        let result =
            std::panic::catch_unwind(work).unwrap_or_else(|_| Err(OperationError::text("the create panicked")));
        if result.is_ok() {
            uploads::used(&daemon.library, &sent);
            daemon.library.collect();
        }
        (result, sent.is_empty())
    });
    let (result, without_uploads) = work.await.internal()?;
    if result.is_ok() && !without_uploads {
        collections.after(uploads::AFTERWARDS, &library);
    }
    result
}

/// Returns the digests of the uploaded blobs: files of the model and of its adapters.
fn uploaded_blobs(spec: &CreateSpec) -> Vec<Digest> {
    let files = if let Source::Files(files) = &spec.source { &files[..] } else { &[] };
    files.iter().chain(&spec.adapters).filter_map(|file| file.source.digest()).collect()
}

/// Reports that the base model does not exist, if it was not found. A later failure, such as a blob
/// with wrong content or a full disk, is not reported as a wrong name.
fn absent(name: String, error: OperationError) -> OperationError {
    use RemoteClass::{NoAccess, NotFound, Unreachable};
    if !matches!(error.class(), ErrorClass::Remote(NotFound | NoAccess | Unreachable)) {
        return error.context(format!("pulling `{name}`, which the model is made from"));
    }
    library::Error::Absent { name, reason: error.with_causes() }.into()
}

/// Returns the name of the base model if it is not in the store.
async fn missing(
    daemon: &Daemon,
    spec: &CreateSpec,
    base: Option<String>,
) -> content::operation::Result<Option<String>> {
    let (Source::Model(name), Some(base)) = (&spec.source, base) else { return Ok(None) };
    let (library, name) = (daemon.library.clone(), name.clone());
    let found = tokio::task::spawn_blocking(move || library.find(&name)).await.internal()?;
    match found {
        Err(error) if error.class() == ErrorClass::NotFound => Ok(Some(base)),
        _ => Ok(None),
    }
}

/// Returns the plan of a quantization, for a dry run.
async fn plan(daemon: &Daemon, spec: CreateSpec) -> Result<Response, Failed> {
    let Some(quantize) = spec.quantize else {
        return Err(Failed::bad_request("'dry_run' needs 'quantize', the quantization to plan"));
    };
    let scheme = quantize.policy.scheme.name().to_owned();
    let planned = blocking(&daemon.library, move |library| {
        let guard = library.guard();
        build::plan_quantization(library, &guard, &spec.source, &quantize)
    });
    Ok(Json(quantize_plan(scheme, planned.await?)).into_response())
}

fn quantize_plan(quantize: String, quantization: Quantization) -> QuantizePlan {
    let totals = quantization.totals();
    QuantizePlan {
        quantize,
        tensors: quantization.tensors.iter().map(planned).collect(),
        encoded: totals.encoded,
        kept: totals.kept,
        dropped: totals.dropped,
        before: totals.before,
        after: totals.after,
        unused_rules: quantization.unused_rules,
    }
}

fn planned(row: &TensorRow) -> PlannedTensor {
    let kept = |reason: &str| (row.from.name_with_group(), Some(reason.to_owned()));
    let (to, reason) = match row.decision {
        Decision::Encode(to) => (to.name_with_group(), None),
        Decision::Drop => ("drop".to_owned(), None),
        Decision::Keep(Reason::User) => kept("policy"),
        Decision::Keep(Reason::Precision) => kept("precision"),
        Decision::Keep(Reason::Misaligned) => kept("misaligned"),
        Decision::Keep(Reason::NotFloat) => kept("not-float"),
        Decision::Keep(Reason::Already) => kept("already"),
    };
    let (name, shape) = (row.name.clone(), row.shape.clone());
    PlannedTensor { name, shape, from: row.from.name_with_group(), to, reason, before: row.before, after: row.after }
}

async fn tell(lines: &Lines, result: content::operation::Result<Created>, unknown: &[String]) {
    match result {
        Ok(created) => {
            lines.send(&Progress::status(summary(&created))).await;
            lines.send(&Progress::success(unknown)).await;
        }
        Err(error) => {
            lines.send(&ErrorResponse { error: Failed::from(error).message }).await;
        }
    }
}

/// Summarizes how many blobs are new and how many are shared.
fn summary(created: &Created) -> String {
    let Created { new, shared } = created;
    let size = |amount: &Amount| text::size(amount.bytes);
    match new.blobs {
        0 => {
            format!("all {} tensor blobs ({}) were there already; nothing was written", shared.blobs, size(shared))
        }
        _ => format!(
            "{} tensor blobs ({}) are new, {} ({}) are shared",
            new.blobs,
            size(new),
            shared.blobs,
            size(shared)
        ),
    }
}

fn spec(daemon: &Daemon, request: CreateRequest, caller: &Caller) -> Result<CreateSpec, Failed> {
    refuse_unsupported(&request)?;
    let name = reference(&request.model, &request.name)?;
    let quantize = quantize(&request)?;
    let files = |files: BTreeMap<String, String>| {
        files.into_iter().map(|(name, digest)| uploaded(daemon, name, &digest)).collect::<Result<Vec<_>, _>>()
    };
    let adapters = files(request.adapters)?;
    let source = match (request.path, request.handed, request.from, request.files.is_empty()) {
        (Some(path), None, None, true) => {
            let projector = request.projector.as_deref().map(|path| local_path(path, caller)).transpose()?;
            Source::at(local_path(&path, caller)?, projector)?
        }
        _ if request.projector.is_some() => {
            return Err(Failed::bad_request("'projector' is a file beside the one in 'path', which is missing"));
        }
        (None, Some(token), None, true) => Source::Files(handed(daemon, &token)?),
        (None, None, Some(from), true) => Source::Model(named(&from)?),
        (None, None, None, false) => Source::Files(files(request.files)?),
        (None, None, None, true) => {
            return Err(Failed::bad_request("neither 'from' or 'files' was specified"));
        }
        _ => return Err(Failed::bad_request("give one of 'from', 'files', 'path' and 'handed'")),
    };
    if request.in_place && (quantize.is_some() || !matches!(source, Source::Files(_))) {
        return Err(Failed::bad_request(
            "'in_place' keeps the tensors of the files in 'path' where they are; it cannot be combined with 'quantize' or 'from'",
        ));
    }
    let renderer = request.renderer.filter(|name| !name.is_empty());
    if let Some(renderer) = &renderer {
        library::check_renderer(renderer).map_err(|error| Failed::bad_request(error.to_string()))?;
    }
    Ok(CreateSpec {
        name,
        source,
        template: request.template,
        renderer,
        parser: request.parser.filter(|name| !name.is_empty()),
        system: request.system,
        licenses: request.license.map(License::texts).unwrap_or_default(),
        parameters: request.parameters,
        messages: request.messages,
        adapters,
        in_place: request.in_place,
        quantize,
    })
}

/// Refuses unsupported fields. Ignoring them would silently create a different model.
fn refuse_unsupported(request: &CreateRequest) -> Result<(), Failed> {
    let elsewhere = request.remote_host.as_ref().is_some_and(|host| !host.is_empty());
    for (given, reason) in [
        (!request.draft_files.is_empty(), "'draft_files' are not supported: models run without a draft model"),
        (elsewhere, "'remote_host' is not supported: models run on this machine"),
    ] {
        if given {
            return Err(Failed::bad_request(reason));
        }
    }
    for message in &request.messages {
        if !["system", "user", "assistant"].contains(&message.role.as_str()) {
            let reason = format!("a message has the role `{}`, expected system, user or assistant", message.role);
            return Err(Failed::bad_request(reason));
        }
    }
    Ok(())
}

/// Reads the options of a quantization, if one is requested.
fn quantize(request: &CreateRequest) -> Result<Option<QuantizeSpec>, Failed> {
    let Some(kind) = request.quantize.as_ref().filter(|kind| !kind.is_empty()) else {
        let alone =
            [("policy", request.policy.is_some()), ("requantize", request.requantize), ("no_cache", request.no_cache)];
        return match alone.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => {
                Err(Failed::bad_request(format!("'{field}' needs 'quantize', the type to quantize to")))
            }
            None => Ok(None),
        };
    };
    let policy = Policy {
        scheme: Scheme::parse(kind)?,
        user: UserPolicy::parse(request.policy.as_deref().unwrap_or_default())?,
    };
    Ok(Some(QuantizeSpec {
        policy,
        sources: if request.requantize { Sources::Any } else { Sources::Floats },
        reuse: if request.no_cache { Reuse::Check } else { Reuse::Known },
    }))
}

/// Checks a local path. The daemon may be able to read more than the client, so paths are reserved
/// for callers with the admin scope.
fn local_path<'a>(path: &'a str, caller: &Caller) -> Result<&'a Path, Failed> {
    caller.require(Scope::Admin).map_err(|refused| Failed {
        message: format!("'path' is a file of the daemon's machine; upload the files instead: {}", refused.message),
        ..refused
    })?;
    let path = Path::new(path);
    if !path.is_absolute() {
        return Err(Failed::bad_request(format!("`{}` is not an absolute path", path.display())));
    }
    Ok(path)
}

/// Takes the files that a command has passed through the socket.
fn handed(daemon: &Daemon, token: &str) -> Result<Vec<NamedFile>, Failed> {
    let reason = "no files are waiting for this token; files are kept for one minute and one request";
    daemon.handed.take(token).ok_or_else(|| Failed::bad_request(reason))
}

/// `GET /api/lode/socket`: the socket through which commands pass files.
pub(crate) async fn socket(State(daemon): State<Daemon>) -> Json<SocketResponse> {
    Json(SocketResponse {
        path: daemon.settings.socket.display().to_string(),
        home: daemon.library.home().display().to_string(),
        pid: std::process::id(),
    })
}

fn uploaded(daemon: &Daemon, name: String, digest: &str) -> Result<NamedFile, Failed> {
    let parsed: Digest = digest.parse().map_err(|e| Failed::bad_request(format!("file `{name}`: {e}")))?;
    let there = daemon.library.blobs().size(&parsed)?.is_some();
    if !there {
        return Err(Failed::bad_request(format!("file `{name}`: blob \"{digest}\" not found; upload it first")));
    }
    let source = daemon.library.open_called(&parsed, &name);
    Ok(NamedFile { name, source })
}

struct Reporter {
    lines: Lines,
    streams: bool,
    /// The status text of lines that count bytes.
    step: &'static str,
    /// Number of bytes that was last reported.
    told: AtomicU64,
}

impl Observer for Reporter {
    fn status(&self, status: String) {
        if self.streams {
            self.lines.send_blocking(&Progress::status(status));
        }
    }

    fn bytes(&self, done: u64, total: u64) {
        let told = self.told.load(Ordering::Relaxed);
        let due = done == total || done >= told + STEP;
        // Several workers call this; only one of them sends the line.
        let mine = due && self.told.compare_exchange(told, done, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.streams && mine {
            self.lines.send_blocking(&Progress {
                status: self.step.to_owned(),
                digest: Some("sha256:model".to_owned()),
                name: None,
                total: Some(total),
                completed: Some(done),
                ..Progress::default()
            });
        }
    }

    fn goes_on(&self) -> bool {
        self.lines.is_open()
    }
}
