//! `/api/lode/fsck`, `repair`, `own`, `move`, `du`.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use api::lode::{
    DuFamily, DuModel, DuResponse, FsckReport, FsckRequest, MoveReport, MoveRequest, OwnReport, OwnRequest, Problem,
    RelocatedModel, RepairReport, RepairRequest, RepairedBlob, Sample,
};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use content::{Descriptor, Digest, Observer};
use manifests::ModelRef;
use transfer::{Hosts, Refetch, Upstream};
use upkeep::{DiskUsage, Fetcher, RelocateOptions, Relocated, Selection};

use super::stepwise;
use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::model_documents::timestamp;
use crate::models::{blocking, find_named, named};

pub(crate) async fn fsck(State(daemon): State<Daemon>, Body(request): Body<FsckRequest>) -> Result<Response, Failed> {
    let selection = match (request.sample, request.since, request.model) {
        (None, None, None) => Selection::All,
        (Some(Sample::Count(count)), None, None) => Selection::Count(count),
        (Some(Sample::Percent(percent)), None, None) => Selection::Percent(percent),
        (None, Some(seconds), None) => Selection::NotWithin(Duration::from_secs(seconds)),
        (None, None, Some(model)) => Selection::Blobs(blobs_of(&daemon, &model).await?),
        _ => return Err(Failed::bad_request("give one of 'sample', 'since' and 'model'")),
    };
    stepwise(&daemon, "reading blobs", move |library, observer| {
        if request.rebuild {
            observer.status("rebuilding the index".to_owned());
            library.rebuild()?;
        }
        Ok(checked(upkeep::fsck(library, selection, SystemTime::now(), observer)?))
    })
    .await
}

async fn blobs_of(daemon: &Daemon, model: &str) -> Result<HashSet<Digest>, Failed> {
    let model = find_named(daemon, model).await?;
    let needs = blocking(&daemon.library, move |library| library.needs(model.manifest.digest())).await?;
    Ok(needs.into_iter().map(|need| need.descriptor.digest).collect())
}

pub(crate) async fn repair(
    State(daemon): State<Daemon>,
    Body(request): Body<RepairRequest>,
) -> Result<Response, Failed> {
    let model: Option<ModelRef> = request.model.map(|model| model.parse()).transpose()?;
    let source = Elsewhere(Refetch {
        upstream: Upstream {
            library: daemon.library.clone(),
            hosts: Hosts::new(&daemon.settings.registries, false),
            allowed: None,
        },
        hub: daemon.settings.hub.clone(),
        handle: tokio::runtime::Handle::current(),
    });
    stepwise(&daemon, "reading blobs", move |library, observer| {
        Ok(repaired(upkeep::repair(library, model.as_ref(), &source, observer)?))
    })
    .await
}

pub(crate) async fn own(State(daemon): State<Daemon>, Body(request): Body<OwnRequest>) -> Result<Response, Failed> {
    let model: ModelRef = request.model.parse()?;
    stepwise(&daemon, "copying tensors", move |library, observer| {
        let copied = upkeep::own(library, &model, observer)?;
        Ok(OwnReport { blobs: copied.blobs, bytes: copied.bytes })
    })
    .await
}

/// Moves models to a root.
pub(crate) async fn relocate(
    State(daemon): State<Daemon>,
    Body(request): Body<MoveRequest>,
) -> Result<Response, Failed> {
    if request.models.is_empty() != request.unused.is_some() {
        return Err(Failed::bad_request("give either 'models', or 'unused', a number of seconds"));
    }
    let options = RelocateOptions {
        root: request.to.into(),
        models: request.models.iter().map(|model| Ok(named(model)?)).collect::<Result<_, Failed>>()?,
        unused: request.unused.map(Duration::from_secs),
        now: SystemTime::now(),
        loaded: daemon.scheduler.loaded().into_iter().map(|loaded| loaded.key.model).collect(),
        makes_store: request.create,
    };
    stepwise(&daemon, "moving models", move |library, observer| {
        let plan = upkeep::plan_relocation(library, &options)?;
        let moved = if request.dry_run { Relocated::default() } else { plan.execute(library, observer)? };
        let is_listed = |model: &&upkeep::RelocatedModel| request.dry_run || moved.models.contains(&model.name);
        let model = |model: &upkeep::RelocatedModel| RelocatedModel {
            name: model.name.clone(),
            used: timestamp(model.used),
            bytes: model.bytes,
        };
        Ok(MoveReport {
            models: plan.models.iter().filter(is_listed).map(model).collect(),
            blobs: moved.copied.blobs,
            bytes: moved.copied.bytes,
            failed: moved.failed,
        })
    })
    .await
}

pub(crate) async fn du(State(daemon): State<Daemon>) -> Result<Json<DuResponse>, Failed> {
    Ok(Json(measured(blocking(&daemon.library, upkeep::usage).await?)))
}

/// Registries and hubs as the source of a repair.
struct Elsewhere(Refetch);

impl Fetcher for Elsewhere {
    fn fetch(&self, model: &ModelRef, blob: &Descriptor, observer: &dyn Observer) -> content::operation::Result<()> {
        self.0.fetch(model, blob, observer)
    }

    fn fetch_manifest(
        &self,
        model: &ModelRef,
        digest: &Digest,
        observer: &dyn Observer,
    ) -> content::operation::Result<()> {
        self.0.fetch_manifest(model, digest, observer)
    }
}

fn problem(problem: upkeep::Problem) -> Problem {
    let upkeep::Problem { digest, layer, models, error } = problem;
    Problem { digest: digest.map(|digest| digest.to_string()), layer, models, error }
}

fn checked(report: upkeep::FsckReport) -> FsckReport {
    let upkeep::FsckReport { models, blobs, bytes, problems } = report;
    FsckReport { models, blobs, bytes, problems: problems.into_iter().map(problem).collect() }
}

fn repaired(report: upkeep::RepairReport) -> RepairReport {
    let blob = |blob: upkeep::RepairedBlob| RepairedBlob {
        digest: blob.digest.to_string(),
        layer: blob.layer,
        model: blob.model,
        bytes: blob.bytes,
    };
    RepairReport {
        blobs: report.blobs,
        repaired: report.repaired.into_iter().map(blob).collect(),
        failed: report.failed.into_iter().map(problem).collect(),
    }
}

fn measured(usage: DiskUsage) -> DuResponse {
    let model = |model: upkeep::ModelUsage| DuModel {
        name: model.name,
        digest: model.digest.to_string(),
        bytes: model.bytes,
        unique_bytes: model.unique_bytes,
        shared_bytes: model.shared_bytes,
        adopted_bytes: model.adopted_bytes,
        pinned: model.pinned,
        used: timestamp(model.used),
    };
    let family = |family: upkeep::FamilyUsage| DuFamily {
        family: family.family,
        bytes: family.bytes,
        shared_bytes: family.shared_bytes,
        models: family.models,
    };
    DuResponse {
        models: usage.models.into_iter().map(model).collect(),
        families: usage.families.into_iter().map(family).collect(),
        blobs: usage.blobs,
        bytes: usage.bytes,
        version_bytes: usage.version_bytes,
        linked_bytes: usage.linked_bytes,
        unreferenced_bytes: usage.unreferenced_bytes,
        ingest_bytes: usage.ingest_bytes,
        damaged_bytes: usage.damaged_bytes,
        tier_bytes: usage.tier_bytes,
        adopted_bytes: usage.adopted_bytes,
        root_bytes: usage.root_bytes,
        free_bytes: usage.free_bytes,
    }
}
