//! The models of a store: finding, listing and naming them; the facts derived from their documents;
//! their tensors; and the plans for running them.
//!
//! ```text
//! name ──▶ tag ──▶ manifest, config ──▶ Model ──▶ catalogue, capabilities, architecture (cached)
//!                                                     └──▶ load plan, memory plan
//! ```
//!
//! # Invariants
//! - Derived facts are notes of the index with the version of the code that wrote them; see
//!   [`Library::catalogue`] and similar functions.
//! - Blobs are opened by [`Library::open`] only.
//! - This crate contacts no other machine, and writes only names and notes.

mod adapters;
mod architecture;
mod blobs;
mod capabilities;
mod capability;
mod catalogue;
mod collect;
mod collections;
mod derived;
mod device_layers;
mod divide;
mod documents;
mod error;
mod file_digests;
mod general;
mod index;
mod layout;
mod library;
mod limits;
mod lineage;
mod linked;
mod lists;
mod load_files;
mod load_plan;
mod memory_need;
mod model;
mod models;
mod needs;
mod nesting;
mod observer;
mod obstacle;
mod own;
mod plan;
mod recent;
mod relations;
mod source_facts;
mod summary;
#[cfg(test)]
mod testing;
mod token_table;
mod understood;
mod unlinking;
mod used;
mod versions;
mod whole;

pub use capabilities::check_renderer;
pub use capability::{Capabilities, Capability};
pub use collect::IMPORT_INGESTS;
pub use device_layers::{DeviceRoom, assign_layers};
pub use divide::{Divided, adapter_names, divide};
pub use error::Error;
pub use file_digests::FileDigests;
pub use general::General;
pub use layout::{FileKind, ForeignFile, Layout, classify};
pub use library::Library;
pub use limits::MAX_DOCUMENT;
pub use lineage::Lineage;
pub use linked::Linked;
pub use load_files::{LoadFiles, OpenError};
pub use load_plan::{ModelLoad, load_plan, private_memory};
pub use memory_need::MemoryNeed;
pub use model::{Model, Opening, Own};
pub use needs::{Need, layer_name};
pub use observer::{NOBODY, Observer, Unwatched, ensure_wanted};
pub use obstacle::Obstacle;
pub use plan::{AssumedDevices, MemoryPlan, PlanSpec, Subject};
pub use summary::{Listed, Summary};
pub use understood::{Described, Open, Understood, Unknown};
pub use versions::{RolledBack, Version, VersionState, shown};
