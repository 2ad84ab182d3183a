//! The OCI distribution protocol that the daemon serves under `/v2/`.
//!
//! The tests restate the checks of the specification's conformance programme: every way to upload a
//! blob, with both digest algorithms; every shape of manifest, pushed, listed, read, referred to
//! and deleted. Further tests cover cases that the programme leaves out: paging, limits,
//! conditional requests, hostile names, broken uploads, other clients.
//!
//! `LODE_TEST_REGISTRY=http://HOST:PORT` runs the checks that need no private daemon against that
//! registry instead. That distinguishes an error of a check from an error of the server.

mod blobs;
mod client;
mod data_sets;
mod documents;
mod hostile;
mod manifests;
mod models;
pub(crate) mod official;
mod ollama;
mod peers;
mod ranges;
mod referrers;
mod tags;
mod upload;
mod uploads;
