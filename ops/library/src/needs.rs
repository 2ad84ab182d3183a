//! What a model is made of: its documents and blobs, with what each is called.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};
use content::{Descriptor, Digest};
use manifests::{Document, Layer, Manifest, ModelRef, media_types};

use crate::library::Library;
use crate::model::Model;

/// A blob that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Digest, size and type.
    pub descriptor: Descriptor,
    /// The layer's name, or what kind of blob it is.
    pub layer: String,
}

impl Library {
    /// Everything that the document `digest` needs, itself included, each blob once.
    pub fn needs(&self, digest: &Digest) -> Result<Vec<Need>> {
        let (mut needs, mut seen, mut documents) = (Vec::new(), HashSet::new(), vec![*digest]);
        while let Some(digest) = documents.pop() {
            // Indexes may list manifests that were never sent here.
            let optional = !needs.is_empty();
            if !seen.insert(digest) || (optional && self.store.blob_size(&digest)?.is_none()) {
                continue;
            }
            let raw = self.store.read_blob(&digest, manifests::MAX_MANIFEST as u64)?;
            let document = Document::parse(&raw).with_context(|| format!("manifest `{digest}`"))?;
            let (media_type, children) = match &document {
                Document::Manifest(manifest) => (manifest.media_type().clone(), parts(manifest)),
                Document::Index(index) => {
                    documents.extend(index.manifests().iter().map(|entry| *entry.digest()));
                    (media_types::INDEX, Vec::new())
                }
            };
            let descriptor = Descriptor { media_type, digest, size: raw.len() as u64 };
            needs.push(Need { descriptor, layer: "manifest".to_owned() });
            needs.extend(children.into_iter().filter(|need| seen.insert(need.descriptor.digest)));
        }
        Ok(needs)
    }

    /// Fails where a blob of a model is missing. Under a guard of the store those that are here stay.
    ///
    /// # Errors
    /// The first that is missing, with what to do.
    pub fn ensure_whole(&self, model: &Model) -> Result<()> {
        if let Some(need) = self.first_missing(&model.manifest)? {
            let digest = need.descriptor.digest;
            bail!("blob `{digest}` of `{}` is damaged or missing; run `lode repair {}`", need.layer, model.name);
        }
        Ok(())
    }

    /// The model that another is made from, with all of it. The caller has a guard of the store: what is here stays.
    pub fn find_whole(&self, reference: &ModelRef) -> Result<Model> {
        let model = self.find(reference)?;
        self.ensure_whole(&model)?;
        Ok(model)
    }

    /// The same, where something that is missing is met later: what is here stays all the same.
    pub fn find_kept(&self, reference: &ModelRef) -> Result<Model> {
        let model = self.find(reference)?;
        for need in self.needs(model.manifest.digest())? {
            self.store.blob_size(&need.descriptor.digest)?;
        }
        Ok(model)
    }

    /// The first blob of a manifest that is missing or has another size than the manifest says.
    pub fn first_missing(&self, manifest: &Manifest) -> Result<Option<Need>> {
        for need in parts(manifest) {
            if self.store.blob_size(&need.descriptor.digest)? != Some(need.descriptor.size) {
                return Ok(Some(need));
            }
        }
        Ok(None)
    }
}

/// Config and layers of a manifest.
fn parts(manifest: &Manifest) -> Vec<Need> {
    let config = Need { descriptor: manifest.config().clone(), layer: "config".to_owned() };
    let layer = |layer: &Layer| Need { descriptor: layer.descriptor.clone(), layer: layer_name(layer) };
    [config].into_iter().chain(manifest.layers().iter().map(layer)).collect()
}

/// A layer's name, or the last word of its media type: `template`, `system`, …
pub fn layer_name(layer: &Layer) -> String {
    let word = || layer.media_type().as_str().rsplit(['.', '/']).next().unwrap_or("layer").to_owned();
    layer.name().filter(|name| !name.is_empty()).map_or_else(word, str::to_owned)
}
