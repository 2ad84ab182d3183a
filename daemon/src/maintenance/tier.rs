//! `/api/lode/tier`, `/api/lode/tier/move` and `/api/lode/tier/recall`.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use api::lode::{TierModel, TierMoveReport, TierMoveRequest, TierRecallReport, TierRecallRequest, TierResponse};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use content::operation::Result as Operation;
use content::{Descriptor, Digest};
use library::Library;
use manifests::ModelRef;
use tier::{MovePlan, MoveRequest, Moved, Room, Tier, plan_move};
use tokio::runtime::Handle;

use super::{relay, stepwise};
use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::model_documents::timestamp;

fn tier(daemon: &Daemon) -> Result<Tier, Failed> {
    let missing = "the store has no tier; start the daemon with LODE_TIER, e.g. LODE_TIER=s3://BUCKET/PREFIX";
    daemon.tier.clone().ok_or_else(|| Failed::bad_request(missing))
}

pub(crate) async fn status(State(daemon): State<Daemon>) -> Result<Json<TierResponse>, Failed> {
    let status = tier(&daemon)?.status().await?;
    Ok(Json(TierResponse {
        location: status.location,
        after: status.policy.after.map(|after| after.as_secs()),
        disk: status.policy.disk,
        disk_bytes: status.disk_bytes,
        tier_blobs: status.tier_blobs,
        tier_bytes: status.tier_bytes,
        moved_blobs: status.moved_blobs,
        moved_bytes: status.moved_bytes,
        problem: status.problem,
    }))
}

pub(crate) async fn move_blobs(
    State(daemon): State<Daemon>,
    Body(request): Body<TierMoveRequest>,
) -> Result<Response, Failed> {
    let (tier, handle) = (tier(&daemon)?, Handle::current());
    if request.after.is_none() && request.models.is_empty() {
        return Err(Failed::bad_request("give 'after', a number of seconds, or 'models'"));
    }
    let names = references(&request.models)?;
    let loaded: HashSet<Digest> = daemon.scheduler.loaded().into_iter().map(|loaded| loaded.key.model).collect();
    stepwise(&daemon, "moving blobs to the tier", move |library, observer| {
        let chosen = MoveRequest {
            after: request.after.map(Duration::from_secs),
            models: names.iter().map(|name| Ok(*library.find(name)?.manifest.digest())).collect::<Operation<_>>()?,
            loaded,
            ..MoveRequest::at(SystemTime::now())
        };
        let plan = plan_move(library, &chosen)?;
        if request.dry_run {
            return Ok(report(&plan, Moved::default()));
        }
        relay::run(&handle, observer, |relay| async move {
            let moved = tier.execute(&plan, &*relay).await?;
            Ok(report(&plan, moved))
        })
    })
    .await
}

fn report(plan: &MovePlan, moved: Moved) -> TierMoveReport {
    let model = |model: &tier::MovedModel| TierModel {
        name: model.name.clone(),
        used: model.used.map(timestamp),
        bytes: model.bytes,
    };
    TierMoveReport {
        models: plan.models.iter().map(model).collect(),
        planned_blobs: plan.blobs.len() as u64,
        planned_bytes: plan.bytes(),
        blobs: moved.blobs,
        bytes: moved.bytes,
        sent: moved.sent,
        in_use: moved.in_use,
        failed: moved.failed,
    }
}

pub(crate) async fn recall(
    State(daemon): State<Daemon>,
    Body(request): Body<TierRecallRequest>,
) -> Result<Response, Failed> {
    let (tier, handle) = (tier(&daemon)?, Handle::current());
    if request.all != request.models.is_empty() {
        return Err(Failed::bad_request("give 'models', or 'all'"));
    }
    let names = references(&request.models)?;
    stepwise(&daemon, "copying blobs back", move |library, observer| {
        let (blobs, room) =
            if request.all { (all(library), Room::AsItIs) } else { (of_models(library, &names)?, Room::Make) };
        let _held = library.hold(blobs.iter().map(|blob| blob.digest).collect());
        relay::run(&handle, observer, |relay| async move {
            Ok(TierRecallReport { bytes: tier.recall_all(blobs, room, &*relay).await? })
        })
    })
    .await
}

fn references(names: &[String]) -> Result<Vec<ModelRef>, Failed> {
    names.iter().map(|name| Ok(crate::models::named(name)?)).collect()
}

fn of_models(library: &Library, names: &[ModelRef]) -> Operation<Vec<Descriptor>> {
    let mut blobs = Vec::new();
    for name in names {
        let model = library.find(name)?;
        blobs.extend(library.needs(model.manifest.digest())?.into_iter().map(|need| need.descriptor));
    }
    Ok(blobs)
}

fn all(library: &Library) -> Vec<Descriptor> {
    let mut blobs = Vec::new();
    let unreadable = library.blobs().each_only_in_tier(|digest, size| blobs.push(Descriptor::blob(digest, size)));
    for error in unreadable {
        tracing::warn!("{error}");
    }
    blobs
}
