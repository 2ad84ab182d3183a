//! `/api/lode/plan`.

use std::io;

use api::lode::{PlanRequest, PlanResponse};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use protocol::KvType;
use registry::client;

use crate::daemon::Daemon;
use crate::daemon::error::{Body, Failed};
use crate::daemon::models::reference;
use crate::ops::{self, Hosts, PlanSpec};

/// The most sequences at a time and tokens of a sequence that are planned for.
const MOST: u64 = 1 << 40;

pub(super) async fn plan(
    State(daemon): State<Daemon>,
    Body(request): Body<PlanRequest>,
) -> Result<Json<PlanResponse>, Failed> {
    let number = |what: &str, asked: Option<u64>| match asked {
        Some(number) if !(1..=MOST).contains(&number) => {
            Err(Failed::bad_request(format!("'{what}' is {number}, expected 1 to {MOST}")))
        }
        other => Ok(other),
    };
    let spec = PlanSpec {
        name: reference(&request.model, "")?,
        devices: request.gpus,
        asked_context: number("num_ctx", request.num_ctx)?,
        default_context: daemon.config.context,
        parallel: number("num_parallel", request.num_parallel)?.unwrap_or(daemon.config.parallel),
        kv_type: kv_type(request.kv_cache_type.as_deref())?.unwrap_or(daemon.config.kv_type),
        assumed: daemon.config.devices,
    };
    let hosts = Hosts::new(&daemon.config.registries, request.insecure);
    Ok(Json(ops::plan(&daemon.library, &hosts, &spec).await.map_err(failed)?))
}

/// What a registry is to blame for is told apart from what this daemon is.
fn failed(error: anyhow::Error) -> Failed {
    let status = error.chain().find_map(|cause| match of_registry(cause)? {
        client::Error::NotFound { .. } => Some(StatusCode::NOT_FOUND),
        client::Error::Settings(_) | client::Error::File { .. } => None,
        _ => Some(StatusCode::BAD_GATEWAY),
    });
    match status {
        Some(status) => Failed::new(status, format!("{error:#}")),
        None => error.into(),
    }
}

/// What a registry's client said. What is read of a remote file says it wrapped, and an I/O error does not count what it
/// wraps among its causes.
fn of_registry<'e>(cause: &'e (dyn std::error::Error + 'static)) -> Option<&'e client::Error> {
    cause.downcast_ref().or_else(|| cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref())
}

fn kv_type(name: Option<&str>) -> Result<Option<KvType>, Failed> {
    let Some(name) = name else { return Ok(None) };
    KvType::parse(name).map(Some).ok_or_else(|| {
        let known: Vec<&str> = KvType::ALL.into_iter().map(KvType::name).collect();
        Failed::bad_request(format!("'kv_cache_type' is `{name}`, expected one of {}", known.join(", ")))
    })
}
