//! Finding, naming and removing models.

use std::sync::Arc;
use std::time::SystemTime;

use content::operation::{Context, Result};
use content::{Descriptor, Digest, Hasher};
use manifests::{Manifest, ModelConfig, ModelRef};
use store::{Hold, TagEntry};

use crate::error::Error;
use crate::library::Library;
use crate::limits::MAX_DOCUMENT;
use crate::model::{Contents, Model};
use crate::parsed_facts::{ParsedFacts, Unknown};

/// Maximum bytes of a manifest and its config that are cached together. For most models, they have
/// a few hundred KB.
const MAX_REMEMBERED: usize = 4 << 20;

impl Library {
    /// Reads the model that a tag names, without evicting a model from the cache. For callers that
    /// iterate over all models. The flag is true if the result may be cached.
    pub(crate) fn peek(&self, tag: &TagEntry) -> Result<(Model, bool)> {
        let remembered = self.recent.peek(&tag.digest).map(|contents| (contents, true));
        let (contents, lasts) = remembered.map_or_else(|| self.contents(&tag.digest), Ok)?;
        Ok((named(tag, contents)?, lasts))
    }

    /// Returns the model that a name refers to. An exact match takes precedence over a
    /// case-insensitive one.
    pub fn find(&self, reference: &ModelRef) -> Result<Model> {
        let tag = self.find_tag(reference)?.ok_or_else(|| Error::NotFound(reference.to_string()))?;
        if let Some(digest) = reference.digest().filter(|digest| **digest != tag.digest) {
            return Err(Error::NotFound(reference.to_string()))
                .with_context(|| format!("`{}` is `{}` at the moment, not `{digest}`", tag.name, tag.digest));
        }
        self.model_of(&tag)
    }

    /// Returns the tag that a name refers to.
    pub fn find_tag(&self, reference: &ModelRef) -> Result<Option<TagEntry>> {
        let Some(key) = reference.tag_key() else {
            let prefix = format!("{}/{}:", reference.host(), reference.repository());
            let wanted = reference.digest();
            let mut tags = self.store.names().list().into_iter();
            return Ok(tags.find(|tag| tag.name.starts_with(&prefix) && Some(&tag.digest) == wanted));
        };
        if let Some(exact) = self.store.names().get(&key)? {
            return Ok(Some(exact));
        }
        let same = self.store.names().search(None, 1, |name| name.eq_ignore_ascii_case(&key));
        same.first().map_or(Ok(None), |name| Ok(self.store.names().get(name)?))
    }

    /// Returns the model that a tag names, or would name, and caches it.
    pub fn model_of(&self, tag: &TagEntry) -> Result<Model> {
        if let Some(contents) = self.recent.get(&tag.digest) {
            return named(tag, contents);
        }
        let (contents, lasts) = self.contents(&tag.digest)?;
        named(tag, if lasts { self.recent.remember(contents) } else { contents })
    }

    /// Reads manifest and config. The flag is true if they may be cached: nothing is damaged, all
    /// facts that only the files contain could be read, and the documents are small enough to cache
    /// sixteen like them.
    pub(crate) fn contents(&self, digest: &Digest) -> Result<(Contents, bool)> {
        let manifest = Arc::new(self.manifest(digest)?);
        let config = self.store.blobs().read(&manifest.config().digest, MAX_DOCUMENT)?;
        let mut hasher = Hasher::new(manifest.config().digest.algorithm());
        hasher.update(&config);
        let good = manifest.digest() == digest && hasher.finish() == manifest.config().digest;
        let small = manifest.raw().len() + config.len() <= MAX_REMEMBERED;
        let (config, complete) = self.completed(ModelConfig::parse(&config)?, &manifest);
        let (parsed_facts, readable) = match self.parsed_facts(&manifest) {
            Ok(parsed_facts) => (parsed_facts, true),
            Err(error) => (ParsedFacts::Unknown(Unknown::because(format!("{error:#}"))), false),
        };
        let contents =
            Contents { manifest, config: Arc::new(config), parsed_facts: Arc::new(parsed_facts), own: Arc::default() };
        Ok((contents, good && small && complete && readable))
    }

    /// Reads a manifest.
    pub fn manifest(&self, digest: &Digest) -> Result<Manifest> {
        let raw = self.store.blobs().read(digest, manifests::MAX_MANIFEST as u64)?;
        Manifest::parse(&raw).with_context(|| format!("manifest `{digest}`"))
    }

    /// Returns the descriptor of a blob in a manifest.
    pub fn descriptor(&self, manifest: &Digest, blob: &Digest) -> Option<Descriptor> {
        let manifest = self.manifest(manifest).ok()?;
        let layers = manifest.layers().iter().map(|layer| &layer.descriptor);
        layers.chain([manifest.config()]).find(|descriptor| descriptor.digest == *blob).cloned()
    }

    /// Clears the caches, so that everything is read again.
    pub fn forget_contents(&self) {
        self.recent.clear();
        self.summaries.clear();
    }

    /// Returns the model that a name refers to. The hold protects all its blobs from collection,
    /// even if the name changes.
    pub fn find_held(&self, reference: &ModelRef) -> Result<(Model, Hold)> {
        let mut model = self.find(reference)?;
        loop {
            let needs = self.needs(model.manifest.digest())?;
            let hold = self.store.hold(needs.into_iter().map(|need| need.descriptor.digest).collect());
            // If the model lost its name before the hold, some of its blobs may be gone, so the
            // name is resolved again.
            let now = self.find(reference)?;
            if now.manifest.digest() == model.manifest.digest() {
                return Ok((model, hold));
            }
            model = now;
        }
    }

    /// Returns the key under which a name is stored. If an existing name differs only in case, this
    /// is its key, since look-ups ignore case; otherwise it is `key` itself.
    ///
    /// # Errors
    /// The tags cannot be read.
    pub fn key_of(&self, key: &str) -> Result<String> {
        if self.store.names().get(key)?.is_some() {
            return Ok(key.to_owned());
        }
        let same = self.store.names().list().into_iter().find(|tag| tag.name.eq_ignore_ascii_case(key));
        Ok(same.map_or_else(|| key.to_owned(), |tag| tag.name))
    }

    /// Gives a model a second name.
    pub fn copy(&self, source: &ModelRef, destination: &ModelRef) -> Result<()> {
        let (model, _hold) = self.find_held(source)?;
        let key = destination.tag_key().context("the new name needs a tag, not a digest")?;
        Ok(self.store.names().set(&self.key_of(&key)?, model.manifest.digest())?)
    }

    /// Removes a model's name and deletes the blobs that no other model needs. A pinned model
    /// stays.
    pub fn delete(&self, reference: &ModelRef) -> Result<()> {
        match self.find_tag(reference)? {
            Some(tag) if reference.digest().is_none_or(|digest| *digest == tag.digest) => {
                self.ensure_not_pinned(reference)?;
                self.remove(&tag)?;
            }
            _ => {
                let linked = self.find_linked(reference)?;
                self.remove_linked(&linked.ok_or_else(|| Error::NotFound(reference.to_string()))?)?;
            }
        }
        self.collect();
        Ok(())
    }

    /// Removes a model's name. Its blobs stay until the next collection.
    pub fn remove(&self, tag: &TagEntry) -> Result<()> {
        self.store.names().remove(&tag.name)?;
        self.recent.forget(&tag.digest);
        self.unlink(tag)
    }

    /// [`Library::remove`], but only if the name was not given to another model since it was read
    /// as `tag`. Returns whether it was removed.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn remove_unchanged(&self, tag: &TagEntry) -> Result<bool> {
        let removed = self.store.names().remove_unchanged(tag)?;
        if removed {
            self.recent.forget(&tag.digest);
            self.unlink(tag)?;
        }
        Ok(removed)
    }

    /// Removes a model that has lost its tag from its repository, where a client of the registry
    /// pushed it, unless another tag in the repository names it.
    fn unlink(&self, tag: &TagEntry) -> Result<()> {
        let Some((repository, _)) = tag.name.rsplit_once(':') else { return Ok(()) };
        if !self.store.names().of_repository_here(repository)?.iter().any(|other| other.digest == tag.digest) {
            self.unlink_document(repository, &tag.digest, SystemTime::now())?;
        }
        Ok(())
    }
}

/// Combines contents with the name that was found.
fn named(tag: &TagEntry, contents: Contents) -> Result<Model> {
    let reference: ModelRef = tag.name.parse()?;
    let Contents { manifest, config, parsed_facts, own } = contents;
    Ok(Model { name: reference.to_string(), manifest, config, parsed_facts, modified: tag.modified, own })
}
