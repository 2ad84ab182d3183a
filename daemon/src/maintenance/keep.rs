//! `/api/lode/gc` and `/api/lode/prune`.

use std::time::{Duration, SystemTime};

use api::lode::{GcRequest, GcResponse, PruneModel, PruneRequest, PruneResponse, PruneVersions};
use axum::Json;
use axum::extract::State;
use store::Collected;

use crate::body::Body;
use crate::daemon::Daemon;
use crate::describe::timestamp;
use crate::error::Failed;
use crate::models::blocking;
use library::{Library, shown};
use upkeep::{PruneOptions, PrunePlan, plan_prune};

pub(crate) async fn gc(
    State(daemon): State<Daemon>,
    Body(request): Body<GcRequest>,
) -> Result<Json<GcResponse>, Failed> {
    let done = if request.dry_run {
        let blobs = blocking(&daemon.library, Library::collectable).await?;
        let bytes = blobs.iter().map(|(_, size)| size).sum();
        GcResponse { deferred: false, blobs: blobs.len() as u64, bytes }
    } else {
        answer(blocking(&daemon.library, Library::gc).await?)
    };
    Ok(Json(done))
}

fn answer(collected: Collected) -> GcResponse {
    match collected {
        Collected::Deferred => GcResponse { deferred: true, ..GcResponse::default() },
        Collected::Done { blobs, bytes } => GcResponse { deferred: false, blobs, bytes },
    }
}

pub(crate) async fn prune(
    State(daemon): State<Daemon>,
    Body(request): Body<PruneRequest>,
) -> Result<Json<PruneResponse>, Failed> {
    let options = PruneOptions {
        now: SystemTime::now(),
        older_than: request.older_than.map(Duration::from_secs),
        loaded: daemon.scheduler.loaded().into_iter().map(|loaded| loaded.key.model).collect(),
    };
    let pruned = move |library: &Library| {
        let plan = plan_prune(library, &options)?;
        let collected = if request.dry_run { None } else { Some(answer(plan.execute(library)?)) };
        Ok(PruneResponse { collected, ..describe(&plan)? })
    };
    Ok(Json(blocking(&daemon.library, pruned).await?))
}

fn describe(plan: &PrunePlan) -> anyhow::Result<PruneResponse> {
    let model = |model: &upkeep::UnusedModel| PruneModel {
        name: model.name.clone(),
        used: timestamp(model.used),
        bytes: model.bytes,
    };
    let versions = plan.versions.iter().map(|(name, digests)| {
        let digests = digests.iter().map(ToString::to_string).collect();
        Ok(PruneVersions { name: shown(name)?, digests })
    });
    Ok(PruneResponse {
        models: plan.models.iter().map(model).collect(),
        versions: versions.collect::<anyhow::Result<_>>()?,
        ingests: plan.ingests.len() as u64,
        ingest_bytes: plan.ingests.iter().map(|ingest| ingest.bytes).sum(),
        collected: None,
    })
}
