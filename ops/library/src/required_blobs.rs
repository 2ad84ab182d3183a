//! The blobs that a model needs: its documents and layers, with their names.

use std::collections::HashSet;

use content::bail;
use content::operation::{Context, Result};
use content::{Descriptor, Digest};
use manifests::{Document, Layer, Manifest, ModelRef, media_types};
use store::Guard;

use crate::library::Library;
use crate::model::Model;

/// A blob that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredBlob {
    /// Digest, size and media type.
    pub descriptor: Descriptor,
    /// Name of the layer, or the kind of blob if it has none.
    pub layer: String,
}

impl Library {
    /// Returns all blobs that the document `digest` needs, including itself, each once.
    pub fn needs(&self, digest: &Digest) -> Result<Vec<RequiredBlob>> {
        let (mut needs, mut seen, mut documents) = (Vec::new(), HashSet::new(), vec![*digest]);
        while let Some(digest) = documents.pop() {
            // An index can list manifests that are not in the store.
            let optional = !needs.is_empty();
            if !seen.insert(digest) || (optional && self.store.blobs().size(&digest)?.is_none()) {
                continue;
            }
            let raw = self.store.blobs().read(&digest, manifests::MAX_MANIFEST as u64)?;
            let document = Document::parse(&raw).with_context(|| format!("manifest `{digest}`"))?;
            let (media_type, children) = match &document {
                Document::Manifest(manifest) => (manifest.media_type().clone(), parts(manifest)),
                Document::Index(index) => {
                    documents.extend(index.manifests().iter().map(|entry| *entry.digest()));
                    (media_types::INDEX, Vec::new())
                }
            };
            let descriptor = Descriptor { media_type, digest, size: raw.len() as u64 };
            needs.push(RequiredBlob { descriptor, layer: "manifest".to_owned() });
            needs.extend(children.into_iter().filter(|need| seen.insert(need.descriptor.digest)));
        }
        Ok(needs)
    }

    /// Fails if a blob of a model is missing.
    ///
    /// # Errors
    /// The first missing blob, with advice on how to repair it.
    pub fn ensure_whole(&self, model: &Model) -> Result<()> {
        ensure_none_missing(self, model, self.first_missing(&model.manifest)?)
    }

    /// Returns a model that another one is to be derived from, and checks that all its blobs exist.
    /// The guard keeps the blobs.
    pub fn find_complete(&self, guard: &Guard, reference: &ModelRef) -> Result<Model> {
        let model = self.find(reference)?;
        guard.keep(model.manifest.digest())?;
        ensure_none_missing(self, &model, keep_parts(guard, &model.manifest)?)?;
        Ok(model)
    }

    /// Like [`find_complete`](Self::find_complete), but missing blobs are not an error here; they
    /// are reported later. The guard keeps the existing blobs all the same.
    pub fn find_protected(&self, guard: &Guard, reference: &ModelRef) -> Result<Model> {
        let model = self.find(reference)?;
        for need in self.needs(model.manifest.digest())? {
            guard.keep(&need.descriptor.digest)?;
        }
        Ok(model)
    }

    /// Returns the first blob of a manifest that is missing or whose size differs from its
    /// descriptor.
    pub fn first_missing(&self, manifest: &Manifest) -> Result<Option<RequiredBlob>> {
        first_missing(manifest, |digest| self.store.blobs().size(digest))
    }
}

/// Keeps the blobs of a manifest. Returns the first blob that is missing or whose size differs from
/// its descriptor; later blobs are then not kept.
pub fn keep_parts(guard: &Guard, manifest: &Manifest) -> Result<Option<RequiredBlob>> {
    first_missing(manifest, |digest| guard.keep(digest))
}

fn first_missing(
    manifest: &Manifest,
    size: impl Fn(&Digest) -> Result<Option<u64>, store::Error>,
) -> Result<Option<RequiredBlob>> {
    for need in parts(manifest) {
        if size(&need.descriptor.digest)? != Some(need.descriptor.size) {
            return Ok(Some(need));
        }
    }
    Ok(None)
}

fn ensure_none_missing(library: &Library, model: &Model, missing: Option<RequiredBlob>) -> Result<()> {
    if let Some(need) = missing {
        let digest = need.descriptor.digest;
        if let Some(lost) = library.blobs().missing_reason(&digest)? {
            return Err(lost.into());
        }
        bail!("blob `{digest}` of `{}` is damaged or missing; run `lode repair {}`", need.layer, model.name);
    }
    Ok(())
}

/// Returns the config and the layers of a manifest.
fn parts(manifest: &Manifest) -> Vec<RequiredBlob> {
    let config = RequiredBlob { descriptor: manifest.config().clone(), layer: "config".to_owned() };
    let layer = |layer: &Layer| RequiredBlob { descriptor: layer.descriptor.clone(), layer: layer_name(layer) };
    [config].into_iter().chain(manifest.layers().iter().map(layer)).collect()
}

/// Returns a layer's name, or the last word of its media type: `template`, `system`, …
pub fn layer_name(layer: &Layer) -> String {
    let word = || layer.media_type().as_str().rsplit(['.', '/']).next().unwrap_or("layer").to_owned();
    layer.name().filter(|name| !name.is_empty()).map_or_else(word, str::to_owned)
}
