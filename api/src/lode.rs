//! Lode's own API: looking after a store. Everything is below `/api/lode/`, but `/api/save`, `/api/load` and
//! `/api/export`.

mod archive;
mod compare;
mod export;
mod keep;
mod perplexity;
mod plan;
mod quantize;
mod search;
mod socket;
mod upkeep;
mod versions;

pub use archive::{LoadResponse, LoadedModel, SaveRequest, SinceRequest};
pub use compare::{DiffRequest, DiffResponse, LayerDiff, TensorDiff, TensorSide, ValueDiff};
pub use export::{ExportChecked, ExportDtype, ExportFormat, ExportRequest};
pub use keep::{
    GcRequest, GcResponse, LinkedManifest, LinkedResponse, PruneModel, PruneRequest, PruneResponse, PruneVersions,
    PutOff,
};
pub use perplexity::{PerplexityRequest, PerplexityResponse, Scored};
pub use plan::{PlanRequest, PlanResponse, PlanSource, PlannedDevice, PlannedMemory};
pub use quantize::{PlannedTensor, QuantizePlan};
pub use search::{OfferedModel, SearchRequest, SearchResponse, SilentSource};
pub use socket::SocketResponse;
pub use upkeep::{
    DuModel, DuResponse, FsckReport, FsckRequest, Problem, RepairReport, RepairRequest, RepairedBlob, Sample, Step,
};
pub use versions::{HistoryEntry, HistoryResponse, ModelRequest, RollbackRequest, RollbackResponse, VersionState};
