//! Pull-through cache: fetches content that a repository lacks from the registry of its name, and
//! keeps it.
//!
//! Manifests are linked, not tagged. A tag is resolved at the upstream each time, so that it is
//! never outdated, and cached manifests are not listed among the models of this machine.

use content::operation::{Result, Unclassified};
use content::{Descriptor, Digest};
use library::Library;
use manifests::{Document, ModelRef};
use registry::client::{Counter, Error, Fetcher};
use store::LinkKind;

use crate::document::store_document;
use crate::hosts::Hosts;

/// The source of missing content.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The library that keeps the content.
    pub library: Library,
    /// Connections to registries.
    pub hosts: Hosts,
    /// The registries to which requests of other clients are forwarded; `None` means all, for the
    /// owner of the store.
    pub allowed: Option<Vec<String>>,
}

/// A counter that discards all counts.
pub(crate) struct Uncounted;

impl Counter for Uncounted {
    fn add(&self, _bytes: u64) {}
    fn remove(&self, _bytes: u64) {}
}

impl Upstream {
    /// Fetches a manifest for `repository` (`host/name`) and links it there. `None` if the upstream
    /// has none.
    pub(crate) async fn manifest(&self, repository: &str, reference: &str) -> Result<Option<Digest>> {
        let name: ModelRef = repository.parse()?;
        if !self.may_ask(&name) {
            return Ok(None);
        }
        let (remote, _) = self.hosts.remote(&name)?;
        let (digest, raw) = match remote.manifest(reference).await {
            Ok(found) => found,
            // Some registries respond so for content that they do not have.
            Err(Error::NotFound { .. } | Error::Unauthorized { .. } | Error::Denied { .. }) => return Ok(None),
            Err(error) if error.is_transient() && self.allowed.is_some() => {
                tracing::warn!(repository, "the upstream cannot be reached: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let document = Document::parse(&raw)?;
        let (library, repository) = (self.library.clone(), repository.to_owned());
        let keep = move || {
            let guard = library.guard();
            library.ensure_flat(&digest, &document)?;
            store_document(&library, &guard, &digest, &raw)?;
            library.describe(&digest, &document);
            library.names().link(&repository, LinkKind::Manifest, &digest)
        };
        tokio::task::spawn_blocking(keep).await.internal()??;
        Ok(Some(digest))
    }

    fn may_ask(&self, name: &ModelRef) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.iter().any(|host| host == name.host()))
    }

    /// Fetches a blob that a manifest of `repository` refers to.
    pub(crate) async fn blob(&self, repository: &str, blob: &Descriptor) -> Result<()> {
        let name: ModelRef = repository.parse()?;
        content::ensure!(self.may_ask(&name), "requests of other clients are not forwarded to `{}`", name.host());
        let (remote, parallel) = self.hosts.remote(&name)?;
        Ok(Fetcher::new(remote, parallel).fetch(&self.library, blob, &Uncounted).await?)
    }
}
