//! The models of a store: finding, listing, naming and removing them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use anyhow::{Context, Result};
use content::{Descriptor, Digest};
use manifests::{Document, Manifest, ModelConfig, ModelRef};
use store::{Description, LinkKind, Store, TagEntry};

/// Configs, templates and the like are smaller; a guard for memory, in bytes.
pub(crate) const MAX_DOCUMENT: u64 = 64 << 20;

/// The models of a store.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) store: Store,
    /// Those of models that somebody uses at the moment: hundreds of requests may wait for one model.
    manifests: Arc<Mutex<HashMap<Digest, Weak<Manifest>>>>,
}

/// A model with its documents.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The name by which it was found, complete.
    pub(crate) name: String,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) config: ModelConfig,
    /// When the name was given to it.
    pub(crate) modified: SystemTime,
}

/// There is no such model.
#[derive(Debug, thiserror::Error)]
#[error("model '{0}' not found")]
pub(crate) struct NotFound(pub(crate) String);

impl Library {
    /// The models of this store.
    pub(crate) fn new(store: Store) -> Self {
        Self { store, manifests: Arc::default() }
    }

    /// Every model, the newest first. One that cannot be read is left out and logged: it must not hide the others.
    pub(crate) fn list(&self) -> Result<Vec<Model>> {
        let mut models: Vec<Model> = self
            .store
            .tags()?
            .into_iter()
            .filter_map(|tag| match self.read(&tag) {
                Ok(model) => Some(model),
                Err(error) => {
                    tracing::warn!(model = tag.name, "cannot be read: {error:#}");
                    None
                }
            })
            .collect();
        models.sort_by(|a, b| b.modified.cmp(&a.modified).then(a.name.cmp(&b.name)));
        Ok(models)
    }

    /// The model that a name means. Names are matched as they are written, else without regard to case.
    pub(crate) fn find(&self, reference: &ModelRef) -> Result<Model> {
        let tag = self.find_tag(reference)?.ok_or_else(|| NotFound(reference.to_string()))?;
        if let Some(digest) = reference.digest().filter(|digest| **digest != tag.digest) {
            return Err(NotFound(reference.to_string()))
                .with_context(|| format!("`{}` is `{}` at the moment, not `{digest}`", tag.name, tag.digest));
        }
        self.read(&tag)
    }

    pub(crate) fn find_tag(&self, reference: &ModelRef) -> Result<Option<TagEntry>> {
        let tags = self.store.tags()?;
        let Some(key) = reference.tag_key() else {
            let prefix = format!("{}/{}:", reference.host(), reference.repository());
            let wanted = reference.digest();
            return Ok(tags.into_iter().find(|tag| tag.name.starts_with(&prefix) && Some(&tag.digest) == wanted));
        };
        let exact = tags.iter().find(|tag| tag.name == key);
        Ok(exact.or_else(|| tags.iter().find(|tag| tag.name.eq_ignore_ascii_case(&key))).cloned())
    }

    fn read(&self, tag: &TagEntry) -> Result<Model> {
        let manifest = self.shared_manifest(&tag.digest)?;
        let config = self.store.read_blob(&manifest.config().digest, MAX_DOCUMENT)?;
        let reference: ModelRef = tag.name.parse()?;
        Ok(Model {
            name: reference.to_string(),
            config: self.completed(ModelConfig::parse(&config)?, &manifest),
            manifest,
            modified: tag.modified,
        })
    }

    /// Reads a manifest, or takes the one that somebody uses.
    fn shared_manifest(&self, digest: &Digest) -> Result<Arc<Manifest>> {
        let lock = || self.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manifest) = lock().get(digest).and_then(Weak::upgrade) {
            return Ok(manifest);
        }
        let manifest = Arc::new(self.manifest(digest)?);
        let mut manifests = lock();
        manifests.retain(|_, manifest| manifest.strong_count() > 0);
        manifests.insert(*digest, Arc::downgrade(&manifest));
        Ok(manifest)
    }

    /// Reads a manifest.
    pub(crate) fn manifest(&self, digest: &Digest) -> Result<Manifest> {
        let raw = self.store.read_blob(digest, manifests::MAX_MANIFEST as u64)?;
        Manifest::parse(&raw).with_context(|| format!("manifest `{digest}`"))
    }

    /// What a manifest says of a blob that it refers to.
    pub(crate) fn descriptor(&self, manifest: &Digest, blob: &Digest) -> Option<Descriptor> {
        let manifest = self.manifest(manifest).ok()?;
        let layers = manifest.layers().iter().map(|layer| &layer.descriptor);
        layers.chain([manifest.config()]).find(|descriptor| descriptor.digest == *blob).cloned()
    }

    /// Tells the index what a document refers to.
    pub(crate) fn describe(&self, digest: &Digest, document: &Document) -> Result<(), store::Error> {
        self.store.describe(digest, &description(document))
    }

    /// The text of a small layer.
    pub(crate) fn text(&self, digest: &Digest) -> Result<String> {
        let raw = self.store.read_blob(digest, MAX_DOCUMENT)?;
        String::from_utf8(raw).with_context(|| format!("blob `{digest}` is not text"))
    }

    /// Gives a model a second name.
    pub(crate) fn copy(&self, source: &ModelRef, destination: &ModelRef) -> Result<()> {
        // No collection between finding the model and naming it.
        let _guard = self.store.guard();
        let model = self.find(source)?;
        let key = destination.tag_key().context("the new name needs a tag, not a digest")?;
        Ok(self.store.set_tag(&key, model.manifest.digest())?)
    }

    /// Takes a name away from a model, and deletes what no other model needs. A pinned one stays.
    pub(crate) fn delete(&self, reference: &ModelRef) -> Result<()> {
        let tag = self.find_tag(reference)?.ok_or_else(|| NotFound(reference.to_string()))?;
        if reference.digest().is_some_and(|digest| *digest != tag.digest) {
            return Err(NotFound(reference.to_string()).into());
        }
        self.ensure_not_pinned(reference)?;
        self.remove(&tag)?;
        self.collect();
        Ok(())
    }

    /// Takes a name away from a model. Its blobs stay until the next collection.
    pub(super) fn remove(&self, tag: &TagEntry) -> Result<()> {
        self.store.remove_tag(&tag.name)?;
        self.unlink(tag)
    }

    /// Takes a model that has lost its tag out of its repository, where a registry's client put it: unless another tag
    /// there names it.
    fn unlink(&self, tag: &TagEntry) -> Result<()> {
        let Some((repository, _)) = tag.name.rsplit_once(':') else { return Ok(()) };
        if self.store.tags_of(repository)?.iter().any(|other| other.digest == tag.digest)
            || !self.store.unlink(repository, LinkKind::Manifest, &tag.digest)?
        {
            return Ok(());
        }
        // What cannot be read has no links to be found; they run out by themselves.
        let Ok(raw) = self.store.read_blob(&tag.digest, manifests::MAX_MANIFEST as u64) else { return Ok(()) };
        let Ok(document) = Document::parse(&raw) else { return Ok(()) };
        for blob in document.children().blobs {
            self.store.unlink(repository, LinkKind::Blob, &blob)?;
        }
        Ok(())
    }
}

/// What the index is told of a document.
pub(super) fn description(document: &Document) -> Description {
    Description {
        children: document.children().all(),
        subject: document.subject().map(|subject| subject.digest),
        notes: Vec::new(),
    }
}

impl Model {
    /// The text of the first layer of a type.
    pub(crate) fn layer_text(&self, library: &Library, media_type: content::MediaType) -> Result<Option<String>> {
        self.manifest.layers_of(media_type).next().map(|layer| library.text(layer.digest())).transpose()
    }

    /// The parameters that the model was created with.
    pub(crate) fn parameters(&self, library: &Library) -> Result<serde_json::Map<String, serde_json::Value>> {
        match self.layer_text(library, manifests::media_types::PARAMS)? {
            Some(text) => serde_json::from_str(&text).context("the model's parameters are not a JSON object"),
            None => Ok(serde_json::Map::new()),
        }
    }

    /// The messages that precede every conversation.
    pub(crate) fn messages(&self, library: &Library) -> Result<Vec<protocol::Message>> {
        match self.layer_text(library, manifests::media_types::MESSAGES)? {
            Some(text) => serde_json::from_str(&text).context("the model's messages are not a list"),
            None => Ok(Vec::new()),
        }
    }
}
