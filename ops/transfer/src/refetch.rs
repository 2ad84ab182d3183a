//! Fetches damaged blobs again, from the registry or the hub that their model came from.

use std::sync::Arc;

use content::operation::{Context, Result};
use content::{Descriptor, Digest, Observer};
use library::observed;
use manifests::{ModelRef, annotations};
use tokio::runtime::Handle;
use tokio::sync::mpsc::unbounded_channel;

use crate::hub::HubReference;
use crate::hub_settings::HubSettings;
use crate::meter::Meter;
use crate::pull::{LocalName, pull_as, pull_from_hub};
use crate::upstream::Upstream;

/// Fetches blobs from the sources of their model. Its methods block, so they must not run on the
/// runtime's own threads.
#[derive(Clone, Debug)]
pub struct Refetch {
    /// Access to the registries.
    pub upstream: Upstream,
    /// Access to the hub.
    pub hub: HubSettings,
    /// The runtime for the requests.
    pub handle: Handle,
}

/// The recorded origin of a converted model.
struct Origin {
    reference: String,
    manifest: Option<String>,
}

fn no_source(model: &ModelRef) -> String {
    format!("`{}` does not have it; create `{model}` again, or load it from an archive", model.host())
}

fn repository(model: &ModelRef) -> String {
    format!("{}/{}", model.host(), model.repository())
}

impl Refetch {
    /// Fetches a config or a layer of a model.
    ///
    /// # Errors
    /// No source has it any more, or the caller stopped waiting.
    pub fn fetch(&self, model: &ModelRef, blob: &Descriptor, observer: &dyn Observer) -> Result<()> {
        // The registry of the model's name is tried first. It also has models that were converted
        // and pushed there.
        let repository = repository(model);
        let fetched = observed(&self.handle, observer, self.upstream.blob(&repository, blob));
        let Err(error) = fetched else { return Ok(()) };
        match self.origin(model) {
            Some(origin) => self.again(model, &origin, observer).with_context(|| no_source(model)),
            None => Err(error).with_context(|| no_source(model)),
        }
    }

    /// Fetches a model's manifest by its digest.
    ///
    /// # Errors
    /// No source has it any more, or the caller stopped waiting.
    pub fn fetch_manifest(&self, model: &ModelRef, digest: &Digest, observer: &dyn Observer) -> Result<()> {
        let (repository, reference) = (repository(model), digest.to_string());
        let found = observed(&self.handle, observer, self.upstream.manifest(&repository, &reference));
        let kept = found.with_context(|| no_source(model))?;
        kept.map(drop).with_context(|| no_source(model))
    }

    /// The origin of a converted model, whose blobs no registry has.
    fn origin(&self, model: &ModelRef) -> Option<Origin> {
        let library = &self.upstream.library;
        let tag = library.find_tag(model).ok()??;
        let manifest = library.manifest(&tag.digest).ok()?;
        let note = |key| manifest.annotations().get(key).cloned();
        Some(Origin { reference: note(annotations::ORIGIN_REFERENCE)?, manifest: note(annotations::ORIGIN_MANIFEST) })
    }

    /// Converts the model again under its own name. This reads only the missing parts and gives the
    /// same blobs.
    fn again(&self, model: &ModelRef, origin: &Origin, observer: &dyn Observer) -> Result<()> {
        // The progress is not shown.
        let meter = Arc::new(Meter::new(unbounded_channel().0));
        let Upstream { library, hosts, .. } = &self.upstream;
        if let Some(hub) = HubReference::parse(&origin.reference)? {
            let pulled = pull_from_hub(library, &self.hub, hub, Some(model.clone()), &meter);
            return observed(&self.handle, observer, pulled).map(drop);
        }
        // Pulls the original manifest by digest, whatever the tag names now; the local model with
        // the original name is not touched.
        let digest = origin.manifest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        let plain = origin.reference.split_once('@').map_or(origin.reference.as_str(), |(name, _)| name);
        let name: ModelRef = format!("{plain}{digest}").parse()?;
        let called = |_: &Digest| Ok(LocalName { name: model.clone(), reference: origin.reference.clone() });
        observed(&self.handle, observer, pull_as(library, hosts, &name, called, &meter)).map(drop)
    }
}
