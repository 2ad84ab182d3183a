//! Pull-through: what a repository here lacks is fetched from the registry that its name has, and kept.
//!
//! Manifests are linked, not tagged: a tag is asked of the upstream each time, so that it never gets old, and what passes
//! through is not listed among the models of this machine.

use anyhow::Result;
use content::{Descriptor, Digest};
use library::Library;
use manifests::{Document, ModelRef};
use registry::client::{Counter, Error, Fetcher};
use store::LinkKind;

use crate::document::store_document;
use crate::hosts::Hosts;

/// Where what is missing comes from.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Where it is kept.
    pub library: Library,
    /// How registries are reached.
    pub hosts: Hosts,
    /// The registries that are asked on behalf of others; `None` is every one, for those who own the store.
    pub allowed: Option<Vec<String>>,
}

/// Nobody watches.
struct Unwatched;

impl Counter for Unwatched {
    fn add(&self, _bytes: u64) {}
    fn remove(&self, _bytes: u64) {}
}

impl Upstream {
    /// Fetches a manifest of `repository` (`host/name`) and puts it there. `None` where the upstream has none.
    pub(crate) async fn manifest(&self, repository: &str, reference: &str) -> Result<Option<Digest>> {
        let name: ModelRef = repository.parse()?;
        if !self.may_ask(&name) {
            return Ok(None);
        }
        let (remote, _) = self.hosts.remote(&name)?;
        let (digest, raw) = match remote.manifest(reference).await {
            Ok(found) => found,
            // Some registries say so of what they do not have.
            Err(Error::NotFound { .. } | Error::Unauthorized { .. } | Error::Denied { .. }) => return Ok(None),
            Err(error) if error.is_transient() && self.allowed.is_some() => {
                tracing::warn!(repository, "the upstream cannot be asked: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let document = Document::parse(&raw)?;
        let (library, repository) = (self.library.clone(), repository.to_owned());
        let keep = move || {
            let _guard = library.store.guard();
            library.ensure_flat(&digest, &document)?;
            store_document(&library, &digest, &raw)?;
            library.describe(&digest, &document);
            library.store.link(&repository, LinkKind::Manifest, &digest)
        };
        tokio::task::spawn_blocking(keep).await??;
        Ok(Some(digest))
    }

    fn may_ask(&self, name: &ModelRef) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.iter().any(|host| host == name.host()))
    }

    /// Fetches a blob that a manifest of `repository` refers to.
    pub(crate) async fn blob(&self, repository: &str, blob: &Descriptor) -> Result<()> {
        let name: ModelRef = repository.parse()?;
        anyhow::ensure!(self.may_ask(&name), "`{}` is not asked on behalf of others", name.host());
        let (remote, parallel) = self.hosts.remote(&name)?;
        Ok(Fetcher::new(remote, parallel).fetch(&self.library.store, blob, &Unwatched).await?)
    }
}
