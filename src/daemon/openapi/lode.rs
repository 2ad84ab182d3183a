//! The operations of Lode's own API.

use api::lode::{
    DiffRequest, DiffResponse, DuResponse, ExportChecked, ExportRequest, FsckReport, FsckRequest, GcRequest,
    GcResponse, HistoryResponse, LoadResponse, ModelRequest, PerplexityRequest, PerplexityResponse, PlanRequest,
    PlanResponse, PruneRequest, PruneResponse, RepairReport, RepairRequest, RollbackRequest, RollbackResponse,
    SaveRequest, Step,
};
use axum::http::Method;

use super::operation::{Api, Operation};

fn post(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Lode, Method::POST, path, summary)
}

pub(super) fn operations() -> Vec<Operation> {
    let mut all = versions();
    all.extend(upkeep());
    all.extend(files());
    all
}

/// About single models.
fn versions() -> Vec<Operation> {
    let model = |path, summary| post(path, summary).fails(&[404]);
    vec![
        model("/api/lode/history", "Lists the versions of a model").takes::<ModelRequest>().gives::<HistoryResponse>(),
        model("/api/lode/rollback", "Goes back to an earlier version of a model")
            .takes::<RollbackRequest>()
            .gives::<RollbackResponse>(),
        model("/api/lode/pin", "Protects a model from being removed").takes::<ModelRequest>().gives::<ModelRequest>(),
        model("/api/lode/unpin", "Ends that protection").takes::<ModelRequest>().gives::<ModelRequest>(),
        model("/api/lode/diff", "Compares two models").takes::<DiffRequest>().gives::<DiffResponse>(),
        model("/api/lode/plan", "What a model would take of memory")
            .takes::<PlanRequest>()
            .gives::<PlanResponse>()
            .fails(&[502]),
        model("/api/lode/perplexity", "How well a model expects a text")
            .takes::<PerplexityRequest>()
            .gives::<PerplexityResponse>()
            .fails(&[503]),
    ]
}

/// About the whole store.
fn upkeep() -> Vec<Operation> {
    vec![
        post("/api/lode/gc", "Removes what nothing refers to").takes::<GcRequest>().gives::<GcResponse>(),
        post("/api/lode/prune", "Removes earlier versions, unused models and old ingests")
            .takes::<PruneRequest>()
            .gives::<PruneResponse>(),
        post("/api/lode/fsck", "Looks for damage").takes::<FsckRequest>().lines::<Step<FsckReport>>(),
        post("/api/lode/repair", "Fetches damaged blobs again").takes::<RepairRequest>().lines::<Step<RepairReport>>(),
        Operation::new(Api::Lode, Method::GET, "/api/lode/du", "What takes how much space").gives::<DuResponse>(),
    ]
}

/// Models as files.
fn files() -> Vec<Operation> {
    vec![
        post("/api/save", "Models as a tar with an OCI image layout")
            .takes::<SaveRequest>()
            .gives_bytes("application/x-tar")
            .fails(&[404]),
        post("/api/load", "Takes such a tar")
            .parameter("query", "name", "What to call the only model of the archive.")
            .takes_bytes("application/x-tar")
            .gives::<LoadResponse>()
            .fails(&[409, 507]),
        post("/api/export", "A model as a tar of the files of some format")
            .takes::<ExportRequest>()
            .gives_bytes("application/x-tar")
            .gives::<ExportChecked>()
            .fails(&[404]),
    ]
}
