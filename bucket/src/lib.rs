//! A registry's storage on object storage.
//!
//! Any number of processes ("replicas") serve one bucket and keep nothing else. An upload may reach
//! another replica with each request.
//!
//! # Layout
//! ```text
//! data/ID              bytes of a blob; never overwritten
//! blobs/AA/HEX         the pointer of a blob: state, data, size, nonce (`marked`)
//! repos/NAME/…         manifests, tags, referrers, links to blobs (`repositories`), `pulls`
//! names/NAME           lists a repository in the catalog
//! uploads/ID/…         the state of an upload, and bytes that are not in a part yet (`session`)
//! intents/ID           the blobs of a manifest that is about to be stored (`intents`)
//! trash/ID             data that no pointer names any more (`trash`)
//! keys/token           the key that signs tokens and links of all replicas
//! ```
//! Digests are those of the bytes under `data/`. A blob is visible when its pointer exists, which
//! is written last. So a commit copies nothing. With a SHA-512 digest, it reads the stored bytes
//! once more.
//!
//! # Invariants
//! - Every object that changes does so by compare-and-swap. All others have one content for ever.
//! - An acknowledged blob, manifest or tag is in the bucket, as durable as the provider makes it.
//! - A manifest's blobs exist as long as the manifest: `collect` has the protocol.
//! - A process that is killed at any point leaves objects that the next collection removes.

mod bucket;
mod collect;
mod error;
mod intents;
mod keys;
mod location;
mod marked;
mod objects;
mod open_uploads;
mod part_sizes;
mod probe;
mod pulls;
mod repositories;
mod session;
mod tier;
mod token_key;
mod trash;
mod upload;

#[cfg(test)]
mod tests;

pub use bucket::{Bucket, SIGNED_LIFE};
pub use collect::{CollectOptions, Collected};
pub use error::Error;
pub use intents::Intent;
pub use location::Location;
pub use tier::BucketTier;
pub use upload::Upload;
