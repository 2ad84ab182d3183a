//! `/api/create`: creates and quantizes models.

use api::lode::{PlannedTensor, QuantizePlan, SocketResponse};
use api::ollama::{CreateRequest, Options};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use build::CreateSpec;
use import::{Decision, Quantization, Reason, TensorRow};

use crate::body::Body;
use crate::create_request::spec_of;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::job_tasks::runner;
use crate::jobs::{JobOptions, JobWork};
use crate::models::{blocking, reference};

pub(crate) async fn create(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CreateRequest>,
) -> Result<Response, Failed> {
    let (stream, dry_run) = (request.stream, request.dry_run);
    Options::read(&request.parameters).map_err(Failed::bad_request)?;
    let model = reference(&request.model, &request.name)?.to_string();
    let own = CreateRequest { model, name: String::new(), stream: None, ..request.clone() };
    let work = JobWork::Create(Box::new(own));
    let spec = spec_of(&daemon, request, caller).await?;
    if dry_run {
        return plan(&daemon, spec).await;
    }
    let options = JobOptions { spec: Some(spec), ..JobOptions::default() };
    daemon.jobs.request(work, options, &runner(&daemon)).response(stream, false).await
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

/// `GET /api/lode/socket`: the socket through which commands pass files.
pub(crate) async fn socket(State(daemon): State<Daemon>) -> Json<SocketResponse> {
    Json(SocketResponse {
        path: daemon.settings.socket.display().to_string(),
        home: daemon.library.home().display().to_string(),
        pid: std::process::id(),
    })
}
