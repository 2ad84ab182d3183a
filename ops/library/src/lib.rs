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
//! - Other crates reach the store through [`Library`] only: its handles, [`Library::open`] and the
//!   roles of `content`.
//! - This crate itself writes only names and notes. It contacts no other machine; a
//!   [`RangeReader`] runs the requests of its caller.

mod adapters;
mod architecture;
mod blob_reader;
mod blobs;
mod capabilities;
mod capability;
mod catalogue;
mod collect;
mod collections;
mod config_documents;
mod derived;
mod device_layers;
mod documents;
mod error;
mod file_digests;
mod general;
mod index;
mod layer_split;
mod layout;
mod library;
mod limits;
mod lineage;
mod lists;
mod load_files;
mod load_order;
mod load_plan;
mod memory_need;
mod model;
mod model_defaults;
mod models;
mod nesting;
mod observer;
mod parsed_facts;
mod plan;
mod range_reader;
mod recent;
mod relations;
mod required_blobs;
mod source_facts;
mod summary;
#[cfg(test)]
mod testing;
mod token_table;
mod unlinking;
mod unsupported;
mod untagged;
mod used;
mod versions;
mod whole;

pub use capabilities::check_renderer;
pub use capability::{Capabilities, Capability};
pub use collect::IMPORT_INGESTS;
pub use device_layers::{DeviceRoom, assign_layers};
pub use error::Error;
pub use file_digests::FileDigests;
pub use general::General;
pub use layer_split::{LayerSplit, adapter_names, split_layers};
pub use layout::{ExternalFile, FileKind, Layout, classify};
pub use library::Library;
pub use limits::MAX_DOCUMENT;
pub use lineage::Lineage;
pub use lists::{ListPage, ListedPage};
pub use load_files::LoadFiles;
pub use load_plan::{ModelLoad, load_plan, private_memory};
pub use memory_need::MemoryNeed;
pub use model::{Model, ModelDefaults, Opening};
pub use observer::{NOBODY, ensure_wanted};
pub use parsed_facts::{Described, Open, ParsedFacts, Unknown};
pub use plan::{AssumedDevices, MemoryPlan, PlanSpec, Subject};
pub use range_reader::{FetchRange, Presence, RangeReader, RangeSource, Requests, Windows, observed};
pub use required_blobs::{RequiredBlob, keep_parts, layer_name};
pub use summary::{Listed, Summary};
pub use unsupported::UnsupportedReason;
pub use untagged::UntaggedManifest;
pub use versions::{RolledBack, Version, VersionState, shown};
