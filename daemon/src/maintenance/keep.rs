//! `/api/lode/gc` and `/api/lode/prune`.

use std::time::{Duration, SystemTime};

use api::lode::{
    GcRequest, GcResponse, Leased, LinkedManifest, LinkedResponse, PruneModel, PruneRequest, PruneResponse,
    PruneVersions, PutOff,
};
use axum::Json;
use axum::extract::State;
use store::{Collectable, Collected};

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::model_documents::timestamp;
use crate::models::blocking;
use library::{Library, shown};
use upkeep::{PruneOptions, PrunePlan, plan_prune};

pub(crate) async fn gc(
    State(daemon): State<Daemon>,
    Body(request): Body<GcRequest>,
) -> Result<Json<GcResponse>, Failed> {
    let work = move |library: &Library| {
        if !request.dry_run {
            library.ensure_writable()?;
            return Ok(answer(library.gc()));
        }
        let Collectable { blobs, put_off, leased } = library.collectable();
        let bytes = blobs.iter().map(|(_, size)| size).sum();
        Ok(answer(Collected { blobs: blobs.len() as u64, bytes, put_off, leased }))
    };
    Ok(Json(blocking(&daemon.library, work).await?))
}

fn answer(collected: Collected) -> GcResponse {
    let Collected { blobs, bytes, put_off, leased } = collected;
    let put_off =
        put_off.map(|store::PutOff { blobs, bytes, in_use, reasons }| PutOff { blobs, bytes, in_use, reasons });
    let leased = leased.until.map(|until| Leased { blobs: leased.blobs, bytes: leased.bytes, until: timestamp(until) });
    GcResponse { blobs, bytes, put_off, leased }
}

pub(crate) async fn linked(State(daemon): State<Daemon>) -> Result<Json<LinkedResponse>, Failed> {
    let manifest = |linked: library::UntaggedManifest| LinkedManifest {
        name: linked.name,
        digest: linked.digest.to_string(),
        used: timestamp(linked.used),
        bytes: linked.bytes,
    };
    let listed = blocking(&daemon.library, Library::linked).await?;
    Ok(Json(LinkedResponse { manifests: listed.into_iter().map(manifest).collect() }))
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
        Ok(PruneResponse { collected, ..describe(&plan) })
    };
    Ok(Json(blocking(&daemon.library, pruned).await?))
}

fn describe(plan: &PrunePlan) -> PruneResponse {
    let model = |model: &upkeep::UnusedModel| PruneModel {
        name: model.name.clone(),
        used: timestamp(model.used),
        bytes: model.bytes,
    };
    let linked = |linked: &library::UntaggedManifest| PruneModel {
        name: linked.name.clone(),
        used: timestamp(linked.used),
        bytes: linked.bytes,
    };
    let versions = plan.versions.iter().map(|(name, digests)| {
        let digests = digests.iter().map(ToString::to_string).collect();
        PruneVersions { name: shown(name).unwrap_or_else(|_| name.clone()), digests }
    });
    PruneResponse {
        models: plan.models.iter().map(model).collect(),
        linked: plan.linked.iter().map(linked).collect(),
        versions: versions.collect(),
        ingests: plan.ingests.len() as u64,
        ingest_bytes: plan.ingests.iter().map(|ingest| ingest.bytes).sum(),
        collected: None,
    }
}
