//! The tier of a store: which blobs move to it, and how they come back.
//!
//! ```text
//! disk ──put──▶ disk + tier ──record, remove file──▶ tier ──recall──▶ disk + tier
//! ```
//! Weights of models that have not been used for long move to the tier ([`MovePlan`]), and so do
//! the longest unused ones when the disk has more than its budget. A load copies the blobs of its
//! model back before the runner starts, in the order in which a pass reads them; any other reader
//! of a blob waits until that blob is back.
//!
//! # Invariants
//! - A blob leaves the disk only after the tier has acknowledged it and the store has recorded that
//!   durably. An import, a pull or a push is acknowledged when its blobs are on the disk; the tier
//!   is not asked.
//! - Bytes from the tier pass the store's commit, which compares their digest.
//! - Only tensors move. Documents, files that are stored whole, blobs below [`SMALLEST`] bytes, and
//!   pinned and loaded models stay on the disk.
//! - The tier removes a blob only after a collection of the store has.
//! - The move of a blob excludes removals, the comparison of a blob, and a second move or copy of
//!   it.
//!
//! # After a crash
//! A blob that was put but not recorded is put again, or removed by [`Tier::reconcile`]. An
//! interrupted copy back goes on where it stopped.

mod attach;
mod blocking;
mod moves;
mod plan;
mod recall;
mod recall_turns;
mod recaller;
mod recent_failure;
mod reconcile;
mod removals;
mod status;
mod tier;

pub use moves::Moved;
pub use plan::{MovePlan, MoveRequest, MovedModel, SMALLEST, plan_move};
pub use recall::Room;
pub use reconcile::Reconciled;
pub use status::TierStatus;
pub use tier::{LoadedModels, OpenTier, Tier, TierOptions, TierPolicy};

#[cfg(test)]
mod tests;
