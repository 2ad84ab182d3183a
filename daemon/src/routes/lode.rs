//! Lode's own API.

use api::lode::{
    DiffRequest, DiffResponse, DuResponse, ExportChecked, ExportRequest, FsckReport, FsckRequest, GcRequest,
    GcResponse, HistoryResponse, LinkedResponse, LoadResponse, ModelRequest, PerplexityRequest, PerplexityResponse,
    PlanRequest, PlanResponse, PruneRequest, PruneResponse, RepairReport, RepairRequest, RollbackRequest,
    RollbackResponse, SaveRequest, SearchRequest, SearchResponse, SocketResponse, Step,
};
use axum::http::Method;

use super::Route;
use crate::create;
use crate::guard::Scope;
use crate::maintenance::{archive, compare, export, keep, plan, upkeep, versions};
use crate::openapi::{Api, Operation};
use crate::perplexity::perplexity;
use crate::search::search;

fn post(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Lode, Method::POST, path, summary)
}

pub(super) fn routes() -> Vec<Route> {
    let mut all = models();
    all.extend(upkeep());
    all.extend(files());
    all
}

/// About single models.
fn models() -> Vec<Route> {
    let model = |path, summary, scope| post(path, summary).needs(scope).fails(&[404]);
    vec![
        model("/api/lode/history", "Lists the versions of a model", Scope::Read)
            .takes::<ModelRequest>()
            .gives::<HistoryResponse>()
            .served_by(versions::history),
        model("/api/lode/rollback", "Goes back to an earlier version of a model", Scope::Write)
            .takes::<RollbackRequest>()
            .gives::<RollbackResponse>()
            .served_by(versions::rollback),
        model("/api/lode/pin", "Protects a model from being removed", Scope::Write)
            .takes::<ModelRequest>()
            .gives::<ModelRequest>()
            .served_by(versions::pin),
        model("/api/lode/unpin", "Ends that protection", Scope::Write)
            .takes::<ModelRequest>()
            .gives::<ModelRequest>()
            .served_by(versions::unpin),
        model("/api/lode/diff", "Compares two models", Scope::Read)
            .takes::<DiffRequest>()
            .gives::<DiffResponse>()
            .served_by(compare::diff),
        model("/api/lode/plan", "What a model would take of memory", Scope::Read)
            .takes::<PlanRequest>()
            .gives::<PlanResponse>()
            .fails(&[502])
            .served_by(plan::plan),
        post("/api/lode/search", "What registries and the hub offer")
            .needs(Scope::Write)
            .takes::<SearchRequest>()
            .gives::<SearchResponse>()
            .served_by(search),
        model("/api/lode/perplexity", "How well a model expects a text", Scope::Run)
            .takes::<PerplexityRequest>()
            .gives::<PerplexityResponse>()
            .fails(&[503])
            .served_by(perplexity),
    ]
}

/// About the whole store.
fn upkeep() -> Vec<Route> {
    vec![
        post("/api/lode/gc", "Removes what nothing refers to")
            .needs(Scope::Admin)
            .takes::<GcRequest>()
            .gives::<GcResponse>()
            .served_by(keep::gc),
        post("/api/lode/prune", "Removes earlier versions, unused models and old ingests")
            .needs(Scope::Admin)
            .takes::<PruneRequest>()
            .gives::<PruneResponse>()
            .served_by(keep::prune),
        post("/api/lode/fsck", "Looks for damage")
            .needs(Scope::Admin)
            .takes::<FsckRequest>()
            .lines::<Step<FsckReport>>()
            .served_by(upkeep::fsck),
        post("/api/lode/repair", "Fetches damaged blobs again")
            .needs(Scope::Admin)
            .takes::<RepairRequest>()
            .lines::<Step<RepairReport>>()
            .served_by(upkeep::repair),
        Operation::new(Api::Lode, Method::GET, "/api/lode/du", "What takes how much space")
            .needs(Scope::Read)
            .gives::<DuResponse>()
            .served_by(upkeep::du),
        Operation::new(Api::Lode, Method::GET, "/api/lode/linked", "Lists manifests without a tag")
            .needs(Scope::Read)
            .gives::<LinkedResponse>()
            .served_by(keep::linked),
    ]
}

/// Models as files.
fn files() -> Vec<Route> {
    vec![
        post("/api/save", "Models as a tar with an OCI image layout")
            .needs(Scope::Read)
            .takes::<SaveRequest>()
            .gives_bytes("application/x-tar")
            .fails(&[404])
            .served_by(archive::save),
        post("/api/load", "Takes such a tar")
            .needs(Scope::Write)
            .parameter("query", "name", "What to call the only model of the archive.")
            .takes_bytes("application/x-tar")
            .gives::<LoadResponse>()
            .fails(&[409, 507])
            .served_by(archive::load),
        Operation::new(Api::Lode, Method::GET, "/api/lode/socket", "Where commands hand files over for a create")
            .needs(Scope::Write)
            .gives::<SocketResponse>()
            .served_by(create::socket),
        post("/api/export", "A model as a tar of the files of some format")
            .needs(Scope::Read)
            .takes::<ExportRequest>()
            .gives_bytes("application/x-tar")
            .gives::<ExportChecked>()
            .fails(&[404])
            .served_by(export::export),
    ]
}
