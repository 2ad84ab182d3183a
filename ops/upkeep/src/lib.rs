//! Maintenance of a store: checks, repairs, disk usage, pruning, and the differences between
//! models.
//!
//! # Invariants
//! - Inspection changes nothing except the notes of when blobs were verified.
//! - Unreadable data is never deleted: [`PrunePlan`] leaves it in place, and a repair moves a blob
//!   aside only to fetch it again.

mod diff;
mod error;
mod fsck;
mod own;
mod problem;
mod prune;
mod relocate;
mod repair;
mod sharing;
mod usage;
mod values;
mod verify;

pub use diff::{Diff, LayerDiff, TensorDiff, TensorSide, ValueDiff, diff};
pub use error::Error;
pub use fsck::{FsckReport, Selection, fsck};
pub use own::own;
pub use problem::Problem;
pub use prune::{PruneOptions, PrunePlan, UnusedModel, plan_prune};
pub use relocate::{RelocateOptions, RelocatePlan, Relocated, RelocatedModel, plan_relocation};
pub use repair::{Fetcher, RepairReport, RepairedBlob, repair};
pub use sharing::{SharedBlob, Sharing, SharingModel, sharing};
pub use usage::{DiskUsage, FamilyUsage, ModelUsage, StoredBytes, stored_bytes, usage};
pub use values::{Range, Values, values};
