//! Reading a create request: which files or model, and what of it to change.

use std::collections::BTreeMap;
use std::path::Path;

use api::ollama::{CreateRequest, License};
use build::{CreateSpec, QuantizeSpec, Source};
use content::Digest;
use content::operation::OperationError;
use import::{NamedFile, Policy, Reuse, Scheme, Sources, UserPolicy};

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::{Caller, Scope};
use crate::models::{named, reference};

/// Reads a request on a thread, because the files of a folder are listed.
pub(crate) async fn spec_of(daemon: &Daemon, request: CreateRequest, caller: Caller) -> Result<CreateSpec, Failed> {
    let own = daemon.clone();
    let spec = tokio::task::spawn_blocking(move || spec(&own, request, &caller)).await;
    spec.map_err(|e| Failed::from(OperationError::text(format!("the create ended unexpectedly: {e}"))))?
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

fn uploaded(daemon: &Daemon, name: String, digest: &str) -> Result<NamedFile, Failed> {
    let parsed: Digest = digest.parse().map_err(|e| Failed::bad_request(format!("file `{name}`: {e}")))?;
    let there = daemon.library.blobs().size(&parsed)?.is_some();
    if !there {
        return Err(Failed::bad_request(format!("file `{name}`: blob \"{digest}\" not found; upload it first")));
    }
    let source = daemon.library.open_called(&parsed, &name);
    Ok(NamedFile { name, source })
}
