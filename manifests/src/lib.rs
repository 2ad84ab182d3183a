//! Manifests: documents that combine blobs into a model, and the references that name models.
//!
//! # Invariants
//! - A [`Manifest`] keeps the bytes it was parsed from. Its digest is the digest of these bytes; it
//!   is never serialized again to hash it.
//! - A [`ModelRef`] is safe to use in paths and URLs.
//! - This crate is pure: it uses no files, no network and no clock.

pub mod annotations;
pub mod config;
pub mod document;
pub mod error;
pub mod index;
pub mod layer;
pub mod manifest;
pub mod media_types;
pub mod reference;
mod wire;

pub use config::{LodeConfig, ModelConfig};
pub use document::{Children, Document};
pub use error::Error;
pub use index::Index;
pub use layer::Layer;
pub use manifest::{Manifest, ManifestBuilder};
pub use reference::{ModelRef, Target};

/// The largest manifest that is read or written, in bytes: the usual limit of registries.
pub const MAX_MANIFEST: usize = 4 << 20;
