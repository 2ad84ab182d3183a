//! Deleting what no model needs.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use content::Digest;
use store::Collected;

use super::Library;

/// Uploads and other ingests that nobody went on with for so long are given up.
const ABANDONED: Duration = Duration::from_hours(24);

/// What a manifest refers to, in the store's words.
fn children(raw: &[u8]) -> Result<store::Children, String> {
    let found = manifests::Document::parse(raw).map_err(|e| e.to_string())?.children();
    Ok(store::Children { documents: found.manifests, blobs: found.blobs })
}

impl Library {
    /// Deletes unreferenced blobs. A failure is logged: nothing is lost by keeping too much.
    pub(crate) fn collect(&self) {
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
    pub(crate) fn gc(&self) -> Result<Collected> {
        let collected = self.store.collect(SystemTime::now(), children)?;
        if matches!(collected, Collected::Done { .. }) {
            self.expire_token_tables();
        }
        Ok(collected)
    }

    /// The blobs that a collection would delete now, with their sizes in bytes.
    pub(crate) fn collectable(&self) -> Result<Vec<(Digest, u64)>> {
        Ok(self.store.collectable(SystemTime::now(), children)?)
    }

    /// Tells the index what every document refers to that it does not know, because it is new after a crash.
    pub(crate) fn describe_all(&self) -> Result<()> {
        for digest in self.store.documents()? {
            if self.store.is_described(&digest)? || self.store.blob_size(&digest)?.is_none() {
                continue;
            }
            let raw = self.store.read_blob(&digest, manifests::MAX_MANIFEST as u64)?;
            match manifests::Document::parse(&raw) {
                Ok(document) => self.describe(&digest, &document)?,
                Err(error) => tracing::warn!(%digest, "a manifest cannot be read: {error}"),
            }
        }
        Ok(())
    }

    /// Removes what nobody went on with, and what nothing needs any more: what clients of the registry deleted, too.
    pub(crate) fn sweep(&self) {
        match self.store.expire_ingests(ABANDONED, SystemTime::now()) {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed abandoned ingests"),
            Err(error) => tracing::warn!("abandoned ingests stay: {error}"),
        }
        self.collect();
    }

    /// Puts right what earlier processes left: ingests that cannot be gone on with, an index that lacks something.
    pub(crate) fn tidy(&self) {
        if let Err(error) = self.describe_all() {
            tracing::warn!("the index is not complete: {error}");
        }
        if let Err(error) = self.store.discard_ingests(super::create::INGEST_PREFIX) {
            tracing::warn!("ingests of interrupted imports stay: {error}");
        }
    }
}
