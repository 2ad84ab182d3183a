//! Content-addressed bytes: digests, descriptors and the roles of content stores.
//!
//! The other crates use these types for bytes. A [`Digest`] names them, and a [`Descriptor`] adds
//! their number and media type. The traits in [`roles`] read blobs ([`Provider`]) and write them
//! ([`Ingester`]). Long operations report to an [`Observer`] and fail with an
//! [`OperationError`](operation::OperationError).
//!
//! # Invariants
//! - A [`Digest`] is well-formed: the algorithm is known, the hex is lower case and has the right
//!   length. A path or URL made from one needs no further check.
//! - Bytes become visible under a digest only after their hash was checked ([`Ingest::commit`]).
//! - This crate knows nothing of manifests, file layouts or HTTP.

pub mod descriptor;
pub mod digest;
pub mod error;
pub mod media_type;
pub mod memory;
pub mod observer;
pub mod operation;
pub mod roles;
#[cfg(any(test, feature = "testsuite"))]
pub mod testsuite;
pub mod text;
pub mod tier;

pub use descriptor::Descriptor;
pub use digest::{Algorithm, Digest, Hasher};
pub use error::Error;
pub use media_type::MediaType;
pub use memory::Memory;
pub use observer::{Amount, Observer, Unwatched};
pub use roles::{Expected, Ingest, IngestId, Ingester, Provider};
pub use tier::BlobTier;
