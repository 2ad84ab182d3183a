//! Pull-through: what a repository here lacks is fetched from the registry that its name has, and kept.
//!
//! Manifests are linked, not tagged: a tag is asked of the upstream each time, so that it never gets old, and what passes
//! through is not listed among the models of this machine.

use anyhow::Result;
use content::{Descriptor, Digest};
use manifests::{Document, ModelRef};
use registry::client::{Counter, Error, Fetcher};
use store::LinkKind;

use super::hosts::Hosts;
use super::{Library, pull};

/// Where what is missing comes from.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) library: Library,
    pub(crate) hosts: Hosts,
}

/// Nobody watches.
struct Unwatched;

impl Counter for Unwatched {
    fn add(&self, _bytes: u64) {}
    fn remove(&self, _bytes: u64) {}
}

impl Upstream {
    /// Fetches a manifest of `repository` (`host/name`) and puts it there. `None` where the upstream has none.
    pub(super) async fn manifest(&self, repository: &str, reference: &str) -> Result<Option<Digest>> {
        let name: ModelRef = repository.parse()?;
        let (remote, _) = self.hosts.remote(&name)?;
        let (digest, raw) = match remote.manifest(reference).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let document = Document::parse(&raw)?;
        let (library, repository) = (self.library.clone(), repository.to_owned());
        let keep = move || {
            let _guard = library.store.guard();
            pull::store_document(&library, &digest, &raw)?;
            library.describe(&digest, &document)?;
            library.store.link(&repository, LinkKind::Manifest, &digest)
        };
        tokio::task::spawn_blocking(keep).await??;
        Ok(Some(digest))
    }

    /// Fetches a blob that a manifest of `repository` refers to.
    pub(super) async fn blob(&self, repository: &str, blob: &Descriptor) -> Result<()> {
        let name: ModelRef = repository.parse()?;
        let (remote, parallel) = self.hosts.remote(&name)?;
        Ok(Fetcher::new(remote, parallel).fetch(&self.library.store, blob, &Unwatched).await?)
    }
}
