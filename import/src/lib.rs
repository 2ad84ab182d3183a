//! Import: splits a model's files into blobs, one per tensor or expert group.
//!
//! ```text
//! locate(path) ──▶ inventory(files) ──▶ plan(&inventory) ──▶ write(&plan, target)
//!   which files      headers, once        pure: names,          streams; decides
//!                                         groups, layout        nothing
//! ```
//!
//! A file is any source that can be read at an offset ([`ReadAt`]): a local file, a member of an
//! archive, or a remote file. Of a remote file, only the needed bytes are fetched: its header, then
//! the tensors that are missing.
//!
//! # Invariants
//! - A tensor's bytes and name never change: the contents of a blob do not depend on the supported
//!   architectures. Canonical names are assigned when a model is catalogued. Only weights in forms
//!   that the runner does not support are converted first (`repack`, `ollama_mxfp4`); the inventory
//!   then has a note.
//! - All other bytes are kept too: headers, side files, and gaps that are not all zero. The source
//!   files can be rebuilt bit for bit from the layers and the origin document.
//! - Memory is bounded by one buffer per worker, regardless of the size of a tensor.

mod adapter;
mod archive;
mod catalogue;
mod compose;
mod contained_folder;
mod convert;
mod derive;
mod error;
mod facts;
mod gguf_header;
mod gguf_names;
mod group;
mod inventory;
mod locate;
mod named_projector;
mod ollama_mxfp4;
mod origin;
mod plan;
mod policy;
mod progress;
mod quantization;
mod quantize;
mod read_at;
mod relative_name;
mod repack;
mod source_model;
mod split_weights;
mod stored;
mod target;
mod tensor_source;
mod unsupported;
mod workers;
mod write;

pub use adapter::{
    AdaptedModule, Adapter, FactorOwner, Fitted, ProjectionIndex, adapter_files, adapter_names, adapters,
    split_adapters,
};
pub use archive::{members, verified_members};
pub use catalogue::{CATALOGUE_VERSION, catalogue, join, quantization, whole};
pub use compose::{Composed, ComposedPiece, OpenBlob, digest_of};
pub use convert::{Conversion, Emit};
pub use derive::{Derived, Reuse, derive};
pub use error::Error;
pub use facts::describe;
pub use gguf_header::{MAX_GGUF_HEADER, gguf_header, gguf_headers};
pub use gguf_names::{gguf_stem, is_model_gguf, is_tensor_type, projector_rank};
pub use inventory::{
    Home, Inventory, SideFile, SourceFile, SourceFormat, SourceTensor, inventory, is_projector, is_projector_header,
    is_spare, unused_weights,
};
pub use locate::{locate, locate_beneath, split_names};
pub use named_projector::add_projector;
pub use origin::{Origin, OriginFile, OriginGap, OriginTensor};
pub use plan::{Extent, Plan, PlannedBlob, SideLayer, SideSource, plan, side_type};
pub use policy::{Decision, Policy, Reason, Scheme, Survey, UserPolicy, UserRule};
pub use progress::ImportProgress;
pub use quantization::QuantizationConfig;
pub use quantize::{BlobPlan, Derivation, DerivedTensor, Quantization, Sources, TensorRow, Totals};
pub use read_at::{LocalFile, LocalPart, NamedFile, ReadAt, Slice};
pub use relative_name::relative_name;
pub use source_model::SourceModel;
pub use stored::{StoredPart, StoredTensor};
pub use target::{BlobSink, InPlaceBlob, Target};
pub use tensor_source::{ArraySource, RowOrder, TensorSource};
pub use unsupported::obstacle;
pub use workers::in_parallel;
pub use write::{Imported, write};
