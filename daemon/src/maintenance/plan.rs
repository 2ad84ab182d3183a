//! `/api/lode/plan`.

use content::operation::{ErrorClass, OperationError, RemoteClass};

use api::lode::{PlanRequest, PlanResponse, PlanSource, PlannedDevice, PlannedMemory};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use estimate::exact::Exact;
use estimate::{DeviceUse, Estimate};
use protocol::KvType;

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::{Caller, Scope};
use crate::models::reference;
use library::{PlanSpec, Subject};
use manifests::ModelRef;
use transfer::Hosts;

/// The largest accepted number of sequences, and of tokens per sequence.
const MOST: u64 = 1 << 40;

pub(crate) async fn plan(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<PlanRequest>,
) -> Result<Json<PlanResponse>, Failed> {
    let number = |what: &str, asked: Option<u64>| match asked {
        Some(number) if !(1..=MOST).contains(&number) => {
            Err(Failed::bad_request(format!("'{what}' is {number}, expected 1 to {MOST}")))
        }
        other => Ok(other),
    };
    let name = reference(&request.model, "")?;
    let spec = PlanSpec {
        devices: request.gpus,
        asked_context: number("num_ctx", request.num_ctx)?,
        default_context: daemon.settings.context,
        parallel: number("num_parallel", request.num_parallel)?.unwrap_or(daemon.settings.parallel),
        kv_type: kv_type(request.kv_cache_type.as_deref())?.unwrap_or(daemon.settings.kv_type),
        assumed: daemon.settings.devices,
    };
    let hosts = Hosts::new(&daemon.settings.registries, request.insecure);
    let (subject, source) = subject(&daemon, &caller, &hosts, name).await?;
    Ok(Json(answer(&subject, source, &spec)?))
}

/// Returns the facts about a model: from the store if it is there, otherwise from its registry.
async fn subject(
    daemon: &Daemon,
    caller: &Caller,
    hosts: &Hosts,
    name: ModelRef,
) -> Result<(Subject, PlanSource), Failed> {
    let (library, wanted) = (daemon.library.clone(), name.clone());
    let stored = tokio::task::spawn_blocking(move || Subject::stored(&library, &wanted)).await;
    let stored = stored.map_err(|e| OperationError::text(format!("the operation ended unexpectedly: {e}")))?;
    match stored {
        Ok(subject) => Ok((subject, PlanSource::Store)),
        Err(error) if error.class() == ErrorClass::NotFound => {
            // The request uses our credentials and goes to any host that the name contains, so it
            // needs the write scope.
            caller.require(Scope::Write).map_err(|refused| Failed {
                message: format!(
                    "model '{name}' is not in the store, and querying its registry needs the scope `write`: {}",
                    refused.message
                ),
                ..refused
            })?;
            let subject = transfer::subject_at_registry(hosts, &name).await.map_err(failed)?;
            Ok((subject, PlanSource::Registry))
        }
        Err(error) => Err(failed(error)),
    }
}

fn answer(subject: &Subject, source: PlanSource, spec: &PlanSpec) -> content::operation::Result<PlanResponse> {
    let plan = subject.plan(spec)?;
    let mut notes = plan.notes;
    if source == PlanSource::Registry {
        notes.push("the model is not in the store; tensor sizes are from its manifest or file headers".to_owned());
    }
    Ok(PlanResponse {
        model: subject.name.clone(),
        digest: subject.digest.to_string(),
        source,
        architecture: plan.architecture,
        context: plan.context,
        parallel: spec.parallel,
        kv_cache_type: spec.kv_type.name().to_owned(),
        ollama: of_ollama(&plan.ollama, &spec.devices),
        exact: plan.exact.as_ref().map(|exact| of_exact(exact, &spec.devices)),
        notes,
    })
}

/// Converts an error, distinguishing failures of the registry from failures of this daemon.
fn failed(error: OperationError) -> Failed {
    let status = match error.class() {
        ErrorClass::Remote(RemoteClass::NotFound) => StatusCode::NOT_FOUND,
        ErrorClass::Remote(_) => StatusCode::BAD_GATEWAY,
        _ => return error.into(),
    };
    Failed::new(status, error.with_causes())
}

fn kv_type(name: Option<&str>) -> Result<Option<KvType>, Failed> {
    let Some(name) = name else { return Ok(None) };
    KvType::parse(name).map(Some).ok_or_else(|| {
        let known: Vec<&str> = KvType::ALL.into_iter().map(KvType::name).collect();
        Failed::bad_request(format!("'kv_cache_type' is `{name}`, expected one of {}", known.join(", ")))
    })
}

fn of_ollama(estimate: &Estimate, devices: &[u64]) -> PlannedMemory {
    let total = |of: fn(&DeviceUse) -> u64| total(&estimate.devices, &estimate.system, of);
    PlannedMemory {
        layers: estimate.total_layers as u64,
        layers_on_devices: estimate.layout.assigned() as u64,
        weights: total(|used| used.weights),
        kv_cache: total(|used| used.cache),
        graph: total(|used| used.graph),
        process: 0,
        reserve: estimate.reserve,
        on_devices: estimate.device_size(),
        in_system: estimate.system.size(),
        private: estimate.system.cache,
        total: estimate.total_size(),
        devices: planned_devices(&estimate.devices, devices),
    }
}

fn of_exact(plan: &Exact, devices: &[u64]) -> PlannedMemory {
    let total = |of: fn(&DeviceUse) -> u64| total(&plan.devices, &plan.system, of);
    let in_system = plan.mapped().saturating_add(plan.private());
    PlannedMemory {
        layers: plan.total_layers as u64,
        layers_on_devices: plan.layout.assigned() as u64,
        weights: total(|used| used.weights),
        kv_cache: total(|used| used.cache),
        graph: total(|used| used.graph),
        process: plan.process,
        reserve: 0,
        on_devices: plan.device_size(),
        in_system,
        private: plan.private(),
        total: plan.device_size().saturating_add(in_system),
        devices: planned_devices(&plan.devices, devices),
    }
}

/// Sums a quantity over the devices and the system.
fn total(devices: &[DeviceUse], system: &DeviceUse, of: fn(&DeviceUse) -> u64) -> u64 {
    devices.iter().chain([system]).map(of).fold(0, u64::saturating_add)
}

fn planned_devices(uses: &[DeviceUse], devices: &[u64]) -> Vec<PlannedDevice> {
    let planned = |(used, &free): (&DeviceUse, &u64)| PlannedDevice {
        free,
        layers: used.layers as u64,
        weights: used.weights,
        kv_cache: used.cache,
        graph: used.graph,
        total: used.size(),
    };
    uses.iter().zip(devices).map(planned).collect()
}
