//! Where damaged blobs are fetched again from.

use anyhow::{Result, bail};
use content::{Descriptor, Digest};
use manifests::ModelRef;

use crate::ops::Fetcher;

/// For models that were made here: nobody else has their blobs.
pub(super) struct NoSource;

impl Fetcher for NoSource {
    fn fetch(&self, model: &ModelRef, _blob: &Descriptor) -> Result<()> {
        bail!("there is no source to fetch '{model}' from; create it again, or load it from an archive")
    }

    fn fetch_manifest(&self, model: &ModelRef, _digest: &Digest) -> Result<()> {
        bail!("there is no source to fetch '{model}' from; create it again, or load it from an archive")
    }
}
