//! Lode's own API: the store, running models, plans, search, files. All paths are below
//! `/api/lode/`, except `/api/save`, `/api/load` and `/api/export`.

mod archive;
mod compare;
mod export;
mod jobs;
mod keep;
mod markdown;
mod perplexity;
mod plan;
mod quantize;
mod registry;
mod retention;
mod running;
mod search;
mod sharing;
mod socket;
mod tier;
mod upkeep;
mod upload;
mod values;
mod versions;

pub use archive::{LoadResponse, LoadedModel, SaveRequest, SinceRequest};
pub use compare::{DiffRequest, DiffResponse, LayerDiff, TensorDiff, TensorSide, ValueDiff};
pub use export::{ExportChecked, ExportDtype, ExportFormat, ExportRequest};
pub use jobs::{
    BandwidthRequest, BandwidthResponse, JobChange, JobEntry, JobKind, JobPriority, JobRequest, JobState, JobsResponse,
};
pub use keep::{
    GcRequest, GcResponse, Leased, LinkedManifest, LinkedResponse, PruneModel, PruneRequest, PruneResponse,
    PruneVersions, PutOff,
};
pub use markdown::{MarkdownRequest, MarkdownResponse};
pub use perplexity::{PerplexityRequest, PerplexityResponse, Scored};
pub use plan::{PlanRequest, PlanResponse, PlanSource, PlannedDevice, PlannedMemory};
pub use quantize::{PlannedTensor, QuantizePlan};
pub use registry::{RegistryHost, RegistryResponse};
pub use retention::{ReducedRepository, RetentionRequest, RetentionResponse};
pub use running::{Rate, RunningModel, RunningResponse};
pub use search::{OfferedModel, SearchRequest, SearchResponse, SilentSource};
pub use sharing::{Adapter, LineageResponse, Relative, SharedBlob, SharingModel, SharingResponse};
pub use socket::SocketResponse;
pub use tier::{TierModel, TierMoveReport, TierMoveRequest, TierRecallReport, TierRecallRequest, TierResponse};
pub use upkeep::{
    DuFamily, DuModel, DuResponse, FsckReport, FsckRequest, MoveReport, MoveRequest, OwnReport, OwnRequest, Problem,
    RelocatedModel, RepairReport, RepairRequest, RepairedBlob, Sample, Step,
};
pub use upload::UploadResponse;
pub use values::{ValuesRequest, ValuesResponse};
pub use versions::{HistoryEntry, HistoryResponse, ModelRequest, RollbackRequest, RollbackResponse, VersionState};
