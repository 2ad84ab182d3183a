//! Deleting what no model needs.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use content::Digest;
use store::Collected;

use crate::library::Library;

/// Uploads and other ingests that nobody went on with for so long are given up.
const ABANDONED: Duration = Duration::from_hours(24);

/// How ingests of imports are called. They cannot be resumed, so they are removed when a daemon starts.
pub const IMPORT_INGESTS: &str = "import-";

/// What a manifest refers to, in the store's words.
fn children(raw: &[u8]) -> Result<store::Children, String> {
    let found = manifests::Document::parse(raw).map_err(|e| e.to_string())?.children();
    Ok(store::Children { documents: found.manifests, blobs: found.blobs })
}

impl Library {
    /// Deletes unreferenced blobs. A failure is logged: nothing is lost by keeping too much.
    pub fn collect(&self) {
        match self.gc() {
            Ok(Collected::Done { blobs, bytes }) if blobs > 0 => {
                tracing::info!(blobs, bytes, "deleted unreferenced blobs");
            }
            Ok(Collected::Done { .. }) => {}
            Ok(Collected::Deferred) => tracing::info!("a model is being added; unreferenced blobs are deleted later"),
            Err(error) => tracing::warn!("collection failed: {error}"),
        }
    }

    /// Deletes unreferenced blobs.
    pub fn gc(&self) -> Result<Collected> {
        let collected = self.store.collect(SystemTime::now(), children)?;
        if matches!(collected, Collected::Done { .. }) {
            self.expire_token_tables();
        }
        Ok(collected)
    }

    /// The blobs that a collection would delete now, with their sizes in bytes.
    pub fn collectable(&self) -> Result<Vec<(Digest, u64)>> {
        Ok(self.store.collectable(SystemTime::now(), children)?)
    }

    /// Removes what nobody went on with, and what nothing needs any more: what clients of the registry deleted, too.
    pub fn sweep(&self) {
        match self.store.expire_ingests(ABANDONED, SystemTime::now()) {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed abandoned ingests"),
            Err(error) => tracing::warn!("abandoned ingests stay: {error}"),
        }
        self.collect();
    }

    /// Puts right what earlier processes left: ingests that cannot be gone on with, an index that lacks something.
    pub fn tidy(&self) {
        if let Err(error) = self.describe_all() {
            tracing::warn!("the index is not complete: {error}");
        }
        if let Err(error) = self.store.discard_ingests(IMPORT_INGESTS) {
            tracing::warn!("ingests of interrupted imports stay: {error}");
        }
    }
}
