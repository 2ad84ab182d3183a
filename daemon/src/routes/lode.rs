//! Lode's own API.

use api::lode::{
    BandwidthRequest, BandwidthResponse, DiffRequest, DiffResponse, DuResponse, ExportChecked, ExportRequest,
    FsckReport, FsckRequest, GcRequest, GcResponse, HistoryResponse, JobChange, JobEntry, JobRequest, JobsResponse,
    LineageResponse, LinkedResponse, LoadResponse, MarkdownRequest, MarkdownResponse, ModelRequest, MoveReport,
    MoveRequest, OwnReport, OwnRequest, PerplexityRequest, PerplexityResponse, PlanRequest, PlanResponse, PruneRequest,
    PruneResponse, RegistryResponse, RepairReport, RepairRequest, RetentionRequest, RetentionResponse, RollbackRequest,
    RollbackResponse, RunningResponse, SaveRequest, SearchRequest, SearchResponse, SharingResponse, SocketResponse,
    Step, TierMoveReport, TierMoveRequest, TierRecallReport, TierRecallRequest, TierResponse, UploadResponse,
    ValuesRequest, ValuesResponse,
};
use api::ollama::Progress;
use axum::http::Method;

use super::Route;
use crate::create;
use crate::guard::Scope;
use crate::job_routes as jobs;
use crate::maintenance::{archive, compare, export, keep, plan, registry, relations, tier, upkeep, values, versions};
use crate::markdown::markdown;
use crate::openapi::{Api, Operation};
use crate::perplexity::perplexity;
use crate::registry_retention::retention;
use crate::running::running;
use crate::search::search;
use crate::uploads;

fn post(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Lode, Method::POST, path, summary)
}

pub(super) fn routes() -> Vec<Route> {
    let mut all = models();
    all.extend(upkeep());
    all.extend(tiers());
    all.extend(transfers());
    all.extend(files());
    all.extend(general());
    all
}

/// Calls about single models.
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
        model("/api/lode/unpin", "Allows a pinned model to be removed again", Scope::Write)
            .takes::<ModelRequest>()
            .gives::<ModelRequest>()
            .served_by(versions::unpin),
        model("/api/lode/diff", "Compares two models", Scope::Read)
            .takes::<DiffRequest>()
            .gives::<DiffResponse>()
            .served_by(compare::diff),
        model("/api/lode/plan", "Estimates the memory of a model", Scope::Read)
            .takes::<PlanRequest>()
            .gives::<PlanResponse>()
            .fails(&[502])
            .served_by(plan::plan),
        model("/api/lode/sharing", "Lists the models that share blobs with a model", Scope::Read)
            .takes::<ModelRequest>()
            .gives::<SharingResponse>()
            .served_by(relations::sharing),
        model("/api/lode/lineage", "Lists the base models, adapters and derived models of a model", Scope::Read)
            .takes::<ModelRequest>()
            .gives::<LineageResponse>()
            .served_by(relations::lineage),
        model("/api/lode/values", "Statistics of a tensor's numbers", Scope::Read)
            .takes::<ValuesRequest>()
            .gives::<ValuesResponse>()
            .served_by(values::values),
        post("/api/lode/search", "Searches registries and the hub")
            .needs(Scope::Write)
            .takes::<SearchRequest>()
            .gives::<SearchResponse>()
            .served_by(search),
        model("/api/lode/perplexity", "Perplexity of a text under a model", Scope::Run)
            .takes::<PerplexityRequest>()
            .gives::<PerplexityResponse>()
            .fails(&[503])
            .served_by(perplexity),
    ]
}

/// Calls about the whole store.
fn upkeep() -> Vec<Route> {
    vec![
        post("/api/lode/gc", "Collects unreferenced blobs")
            .needs(Scope::Admin)
            .takes::<GcRequest>()
            .gives::<GcResponse>()
            .served_by(keep::gc),
        post("/api/lode/prune", "Removes earlier versions, unused models and old ingests")
            .needs(Scope::Admin)
            .takes::<PruneRequest>()
            .gives::<PruneResponse>()
            .served_by(keep::prune),
        post("/api/lode/retention", "Removes tags and manifests that the registry's rules do not keep")
            .needs(Scope::Admin)
            .takes::<RetentionRequest>()
            .gives::<RetentionResponse>()
            .served_by(retention),
        post("/api/lode/fsck", "Looks for damage")
            .needs(Scope::Admin)
            .takes::<FsckRequest>()
            .lines::<Step<FsckReport>>()
            .served_by(upkeep::fsck),
        post("/api/lode/move", "Moves models to a root")
            .needs(Scope::Admin)
            .takes::<MoveRequest>()
            .lines::<Step<MoveReport>>()
            .served_by(upkeep::relocate),
        post("/api/lode/own", "Copies the tensors of an adopted model into the store")
            .needs(Scope::Write)
            .takes::<OwnRequest>()
            .lines::<Step<OwnReport>>()
            .served_by(upkeep::own),
        post("/api/lode/repair", "Fetches damaged blobs again")
            .needs(Scope::Admin)
            .takes::<RepairRequest>()
            .lines::<Step<RepairReport>>()
            .served_by(upkeep::repair),
        Operation::new(Api::Lode, Method::GET, "/api/lode/du", "Disk usage by model and family")
            .needs(Scope::Read)
            .gives::<DuResponse>()
            .served_by(upkeep::du),
        Operation::new(Api::Lode, Method::GET, "/api/lode/linked", "Lists manifests without a tag")
            .needs(Scope::Read)
            .gives::<LinkedResponse>()
            .served_by(keep::linked),
    ]
}

/// Calls about jobs: pulls, pushes and creates.
fn transfers() -> Vec<Route> {
    let change = |path, summary| post(path, summary).needs(Scope::Write).fails(&[404, 409]);
    vec![
        Operation::new(Api::Lode, Method::GET, "/api/lode/jobs", "Lists pulls, pushes and creates")
            .needs(Scope::Read)
            .gives::<JobsResponse>()
            .served_by(jobs::jobs),
        change("/api/lode/jobs/pause", "Stops a job until it is resumed")
            .takes::<JobRequest>()
            .gives::<JobEntry>()
            .served_by(jobs::pause),
        change("/api/lode/jobs/resume", "Goes on with a paused or failed job")
            .takes::<JobRequest>()
            .gives::<JobEntry>()
            .served_by(jobs::resume),
        change("/api/lode/jobs/cancel", "Ends a job").takes::<JobRequest>().gives::<JobEntry>().served_by(jobs::cancel),
        post("/api/lode/jobs/change", "Changes the rate limit and the priority of a job")
            .needs(Scope::Write)
            .takes::<JobChange>()
            .gives::<JobEntry>()
            .fails(&[404])
            .served_by(jobs::change),
        post("/api/lode/jobs/watch", "Follows the progress of a job")
            .needs(Scope::Read)
            .takes::<JobRequest>()
            .lines::<Progress>()
            .fails(&[404])
            .served_by(jobs::watch),
        post("/api/lode/bandwidth", "Sets the rate limit that all transfers share")
            .needs(Scope::Admin)
            .takes::<BandwidthRequest>()
            .gives::<BandwidthResponse>()
            .served_by(jobs::bandwidth),
    ]
}

/// Calls about the tier of the store.
fn tiers() -> Vec<Route> {
    vec![
        Operation::new(Api::Lode, Method::GET, "/api/lode/tier", "How much is on the disk and in the tier")
            .needs(Scope::Read)
            .gives::<TierResponse>()
            .fails(&[400])
            .served_by(tier::status),
        post("/api/lode/tier/move", "Moves blobs to the tier")
            .needs(Scope::Admin)
            .takes::<TierMoveRequest>()
            .lines::<Step<TierMoveReport>>()
            .served_by(tier::move_blobs),
        post("/api/lode/tier/recall", "Copies blobs back from the tier")
            .needs(Scope::Admin)
            .takes::<TierRecallRequest>()
            .lines::<Step<TierRecallReport>>()
            .served_by(tier::recall),
    ]
}

/// Calls about the daemon, uploads and Markdown.
fn general() -> Vec<Route> {
    let get = |path, summary| Operation::new(Api::Lode, Method::GET, path, summary).needs(Scope::Read);
    vec![
        get("/api/lode/running", "Loaded models, the queue, and the tokens of the last minutes")
            .gives::<RunningResponse>()
            .served_by(running),
        get("/api/lode/registry", "Access rules of the registry, and settings of other registries")
            .gives::<RegistryResponse>()
            .served_by(registry::registry),
        post("/api/lode/upload", "Uploads a file for a later create and returns its digest")
            .needs(Scope::Write)
            .takes_bytes("application/octet-stream")
            .gives::<UploadResponse>()
            .fails(&[507])
            .served_by(uploads::upload_unnamed),
        post("/api/lode/markdown", "Markdown as HTML that a page may show")
            .needs(Scope::Read)
            .takes::<MarkdownRequest>()
            .gives::<MarkdownResponse>()
            .served_by(markdown),
    ]
}

/// Calls that transfer models as files.
fn files() -> Vec<Route> {
    vec![
        post("/api/save", "Models as a tar with an OCI image layout")
            .needs(Scope::Read)
            .takes::<SaveRequest>()
            .gives_bytes("application/x-tar")
            .fails(&[404])
            .served_by(archive::save),
        post("/api/load", "Loads models from a tar with an OCI image layout")
            .needs(Scope::Write)
            .parameter("query", "name", "What to call the only model of the archive.")
            .takes_bytes("application/x-tar")
            .gives::<LoadResponse>()
            .fails(&[409, 507])
            .served_by(archive::load),
        Operation::new(
            Api::Lode,
            Method::GET,
            "/api/lode/socket",
            "Path of the socket through which commands pass files for a create",
        )
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
