//! Import: a model's files become blobs, one per tensor or expert group.
//!
//! ```text
//! locate(path) ──▶ inventory(files) ──▶ plan(&inventory) ──▶ write(&plan, target)
//!   which files      headers, once        pure: names,          streams; decides
//!                                         groups, layout        nothing
//! ```
//!
//! # Invariants
//! - A tensor's bytes are never changed.
//! - What is not a tensor's bytes — headers, gaps with something in them, side files — is kept too: the source files can
//!   be rebuilt bit for bit from the layers and the origin document.
//! - Memory is bounded by a buffer per worker, whatever the size of a tensor.

mod error;
mod facts;
mod group;
mod inventory;
mod locate;
mod names;
mod origin;
mod plan;
mod write;

pub use error::Error;
pub use facts::describe;
pub use inventory::{Inventory, SideFile, SourceFile, SourceFormat, SourceTensor, TensorType, inventory};
pub use locate::{NamedFile, locate};
pub use origin::{Origin, OriginFile, OriginGap, OriginTensor};
pub use plan::{Extent, Plan, PlannedBlob, SideLayer, SideSource, plan};
pub use write::{Event, Fill, Imported, Progress, Target, write};
