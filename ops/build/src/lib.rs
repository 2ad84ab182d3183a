//! Models made from files and from other models, and exported as files.
//!
//! ```text
//! Source ──▶ import, or plan and derive ──▶ Draft ──▶ manifest ──▶ name
//! Model  ──▶ plan of files ──▶ tar
//! ```
//!
//! # Invariants
//! - A model gets its name when all its parts are stored and readable; nothing of it is visible
//!   before.
//! - An attempt that breaks off leaves only complete blobs. A lease keeps the blobs that the next
//!   attempt would reuse.
//! - Exports and archives are planned first: their length is known before their first byte.

mod adapters;
mod create;
mod draft;
mod error;
mod export;
mod image_layout;
mod load;
mod quantize;
mod save;
mod source;
mod target;

pub use create::{CreateSpec, create};
pub use draft::{Created, Draft, import_into};
pub use error::Error;
pub use export::{Export, ExportFormat, ExportSpec, FloatType};
pub use load::{Loaded, load};
pub use quantize::{QuantizeSpec, plan_quantization};
pub use save::{Archive, Since};
pub use source::Source;
pub use target::{StoreTarget, whole_file};
