//! Where damaged blobs are fetched again from: the registry or the hub that their model came from.

use std::sync::Arc;

use anyhow::{Context, Result};
use content::{Descriptor, Digest};
use manifests::{ModelRef, annotations};
use tokio::runtime::Handle;
use tokio::sync::mpsc::unbounded_channel;

use super::repair::Fetcher;
use super::upstream::Upstream;
use super::{HubReference, Meter, pull, pull_from_hub};
use crate::config::HubConfig;

/// Fetches from where names lead. Called on threads that are not the runtime's own.
pub(crate) struct Refetch {
    pub(crate) upstream: Upstream,
    pub(crate) hub: HubConfig,
    pub(crate) handle: Handle,
}

impl Fetcher for Refetch {
    fn fetch(&self, model: &ModelRef, blob: &Descriptor) -> Result<()> {
        let fetched = match self.origin(model) {
            Some(origin) => self.again(&origin),
            None => self.handle.block_on(self.upstream.blob(&repository(model), blob)),
        };
        fetched.with_context(|| no_source(model))
    }

    fn fetch_manifest(&self, model: &ModelRef, digest: &Digest) -> Result<()> {
        let found = self.handle.block_on(self.upstream.manifest(&repository(model), &digest.to_string()));
        let kept = found.with_context(|| no_source(model))?;
        kept.map(drop).with_context(|| no_source(model))
    }
}

fn no_source(model: &ModelRef) -> String {
    format!("`{}` does not give it; create `{model}` again, or load it from an archive", model.host())
}

fn repository(model: &ModelRef) -> String {
    format!("{}/{}", model.host(), model.repository())
}

impl Refetch {
    /// Where a model was converted from, whose blobs nobody else has.
    fn origin(&self, model: &ModelRef) -> Option<String> {
        let found = self.upstream.library.find(model).ok()?;
        found.manifest.annotations().get(annotations::ORIGIN_REFERENCE).cloned()
    }

    /// Converts it again, which reads only what is missing here.
    fn again(&self, origin: &str) -> Result<()> {
        // Nobody listens.
        let meter = Arc::new(Meter::new(unbounded_channel().0));
        let Upstream { library, hosts } = &self.upstream;
        let pulled = match HubReference::parse(origin)? {
            Some(hub) => self.handle.block_on(pull_from_hub(library, &self.hub, hub, &meter)),
            None => self.handle.block_on(pull(library, hosts, &origin.parse()?, &meter)),
        };
        pulled.map(drop)
    }
}
