//! The OCI distribution protocol as the daemon serves it under `/v2/`.
//!
//! The checks of the specification's conformance programme, restated: every way to upload a blob, with both digest
//! algorithms; every shape of manifest, pushed, listed, read, referred to and deleted. Then what that programme leaves
//! out: paging, limits, conditional requests, hostile names, uploads that break, other clients.
//!
//! `LODE_TEST_REGISTRY=http://HOST:PORT` runs the checks that need no daemon of their own against that registry instead,
//! to tell an error of a check from an error of the server.

mod blobs;
mod client;
mod data_sets;
mod documents;
mod hostile;
mod manifests;
mod models;
mod ollama;
mod peers;
mod ranges;
mod referrers;
mod tags;
mod upload;
mod uploads;
