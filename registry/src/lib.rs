//! The OCI distribution protocol: a client that pulls and pushes, and a server.
//!
//! The server stores nothing itself: it is given a [`server::Storage`](server). The client is the same for every
//! registry; what differs between them is a [`client`] setting.

pub mod client;
pub mod code;
pub mod repository;
pub mod server;

/// The header by which a client tells a registry that it is asked as a mirror: what it lacks it does not fetch.
pub const MIRRORED: &str = "lode-mirrored";

pub use code::ErrorCode;
pub use repository::RepositoryName;
