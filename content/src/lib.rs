//! Content: bytes named by what they are.
//!
//! This crate has the words every other crate uses about bytes: a [`Digest`] names them, a [`Descriptor`] says how
//! many there are and what they mean, and the roles of [`roles`] say who can give them ([`Provider`]), who can take
//! them ([`Ingester`]) and who can name them for people ([`Tagger`]). [`copy`](copy()) moves a blob between any two
//! of those; that is pull, push and mount.
//!
//! # Invariants
//! - A [`Digest`] is well-formed: the algorithm is known, the hex is lower case and of the right length. A path or
//!   URL made from one needs no further check.
//! - Bytes become visible under a digest only after they were hashed to it ([`Ingest::commit`]).
//! - Nothing here knows manifests, files or HTTP.

pub mod copy;
pub mod descriptor;
pub mod digest;
pub mod error;
pub mod io;
pub mod media_type;
pub mod memory;
pub mod roles;
#[cfg(any(test, feature = "testsuite"))]
pub mod testsuite;
pub mod text;

pub use copy::copy;
pub use descriptor::Descriptor;
pub use digest::{Algorithm, Digest, Hasher};
pub use error::Error;
pub use media_type::MediaType;
pub use memory::Memory;
pub use roles::{Expected, Ingest, IngestId, Ingester, Provider, Tagger};
