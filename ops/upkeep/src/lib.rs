//! Looking after a store: what is damaged, what can be mended, what takes space, what can go, and how two models differ.
//!
//! # Invariants
//! - Looking changes nothing but notes of what was found good.
//! - What cannot be read is not deleted around: [`PrunePlan`] leaves it, and a repair sets it aside only to fetch it again.

mod diff;
mod error;
mod fsck;
mod problem;
mod prune;
mod repair;
mod sharing;
mod usage;
mod values;
mod verify;

pub use diff::{Diff, LayerDiff, TensorDiff, TensorSide, ValueDiff, diff};
pub use error::Error;
pub use fsck::{FsckReport, Selection, fsck};
pub use problem::Problem;
pub use prune::{PruneOptions, PrunePlan, UnusedModel, plan_prune};
pub use repair::{Fetcher, RepairReport, RepairedBlob, repair};
pub use sharing::{SharedBlob, Sharing, SharingModel, sharing};
pub use usage::{FamilyUsage, ModelUsage, Usage, usage};
pub use values::{Range, Values, values};
