//! The OCI distribution protocol: a client that pulls and pushes, and a server.
//!
//! The server stores nothing itself; it uses a [`server::Storage`](server). The client is the same
//! for every registry; differences between registries are [`client`] settings.

pub mod client;
pub mod code;
pub mod repository;
pub mod server;

/// The header that marks a request to a mirror. The server then does not fetch missing content from
/// an upstream.
pub const MIRRORED: &str = "lode-mirrored";
/// The value of [`MIRRORED`] in the requests of a server that copies what it gets.
pub const FOR_COPIES: &str = "copy";

pub use code::ErrorCode;
pub use repository::RepositoryName;
