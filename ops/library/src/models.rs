//! Finding, listing, naming and removing models.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};
use content::{Descriptor, Digest, Hasher};
use manifests::{Manifest, ModelConfig, ModelRef};
use store::{Hold, TagEntry};

use crate::error::Error;
use crate::library::Library;
use crate::limits::MAX_DOCUMENT;
use crate::model::{Contents, Model};
use crate::understood::{Understood, Unknown};

/// The largest manifest with its config that is remembered, in bytes. Those of most models have a few hundred KB.
const MAX_REMEMBERED: usize = 4 << 20;

impl Library {
    /// The model that a tag names, for somebody who looks at many: it drives out none that are used. The second says whether what was read
    /// lasts.
    pub(crate) fn peek(&self, tag: &TagEntry) -> Result<(Model, bool)> {
        let remembered = self.recent.peek(&tag.digest).map(|contents| (contents, true));
        let (contents, lasts) = remembered.map_or_else(|| self.contents(&tag.digest), Ok)?;
        Ok((named(tag, contents)?, lasts))
    }

    /// The model that a name means. Names are matched as they are written, else without regard to case.
    pub fn find(&self, reference: &ModelRef) -> Result<Model> {
        let tag = self.find_tag(reference)?.ok_or_else(|| Error::NotFound(reference.to_string()))?;
        if let Some(digest) = reference.digest().filter(|digest| **digest != tag.digest) {
            return Err(Error::NotFound(reference.to_string()))
                .with_context(|| format!("`{}` is `{}` at the moment, not `{digest}`", tag.name, tag.digest));
        }
        self.read(&tag)
    }

    /// The tag that a name means.
    pub fn find_tag(&self, reference: &ModelRef) -> Result<Option<TagEntry>> {
        let Some(key) = reference.tag_key() else {
            let prefix = format!("{}/{}:", reference.host(), reference.repository());
            let wanted = reference.digest();
            let mut tags = self.store.tags().into_iter();
            return Ok(tags.find(|tag| tag.name.starts_with(&prefix) && Some(&tag.digest) == wanted));
        };
        if let Some(exact) = self.store.tag(&key)? {
            return Ok(Some(exact));
        }
        Ok(self.store.tags().into_iter().find(|tag| tag.name.eq_ignore_ascii_case(&key)))
    }

    /// The model that a tag names, or would name, remembered for the next time.
    pub fn read(&self, tag: &TagEntry) -> Result<Model> {
        if let Some(contents) = self.recent.get(&tag.digest) {
            return named(tag, contents);
        }
        let (contents, lasts) = self.contents(&tag.digest)?;
        named(tag, if lasts { self.recent.remember(contents) } else { contents })
    }

    /// Reads manifest and config. The second says whether they may be remembered: nothing is damaged, nothing that is
    /// known only from files could not be read, and they are not so large that sixteen of their kind would hurt.
    pub(crate) fn contents(&self, digest: &Digest) -> Result<(Contents, bool)> {
        let manifest = Arc::new(self.manifest(digest)?);
        let config = self.store.read_blob(&manifest.config().digest, MAX_DOCUMENT)?;
        let mut hasher = Hasher::new(manifest.config().digest.algorithm());
        hasher.update(&config);
        let good = manifest.digest() == digest && hasher.finish() == manifest.config().digest;
        let small = manifest.raw().len() + config.len() <= MAX_REMEMBERED;
        let (config, complete) = self.completed(ModelConfig::parse(&config)?, &manifest);
        let (understood, readable) = match self.understood(&manifest) {
            Ok(understood) => (understood, true),
            Err(error) => (Understood::Unknown(Unknown::because(format!("{error:#}"))), false),
        };
        let contents =
            Contents { manifest, config: Arc::new(config), understood: Arc::new(understood), own: Arc::default() };
        Ok((contents, good && small && complete && readable))
    }

    /// Reads a manifest.
    pub fn manifest(&self, digest: &Digest) -> Result<Manifest> {
        let raw = self.store.read_blob(digest, manifests::MAX_MANIFEST as u64)?;
        Manifest::parse(&raw).with_context(|| format!("manifest `{digest}`"))
    }

    /// What a manifest says of a blob that it refers to.
    pub fn descriptor(&self, manifest: &Digest, blob: &Digest) -> Option<Descriptor> {
        let manifest = self.manifest(manifest).ok()?;
        let layers = manifest.layers().iter().map(|layer| &layer.descriptor);
        layers.chain([manifest.config()]).find(|descriptor| descriptor.digest == *blob).cloned()
    }

    /// Reads everything anew from now on.
    pub fn forget_contents(&self) {
        self.recent.clear();
        self.summaries.clear();
    }

    /// The model that a name means, with all of its blobs kept from collection, whatever becomes of the name.
    pub fn find_held(&self, reference: &ModelRef) -> Result<(Model, Hold)> {
        let mut model = self.find(reference)?;
        loop {
            let needs = self.needs(model.manifest.digest())?;
            let hold = self.store.hold(needs.into_iter().map(|need| need.descriptor.digest).collect());
            // Had it lost its name before it was held, some of it might be gone.
            let now = self.find(reference)?;
            if now.manifest.digest() == model.manifest.digest() {
                return Ok((model, hold));
            }
            model = now;
        }
    }

    /// The key under which a name is stored: that of an existing model whose name differs only in upper and lower case, since
    /// look-ups ignore case; else `key` itself.
    ///
    /// # Errors
    /// The tags cannot be read.
    pub fn key_of(&self, key: &str) -> Result<String> {
        if self.store.tag(key)?.is_some() {
            return Ok(key.to_owned());
        }
        let same = self.store.tags().into_iter().find(|tag| tag.name.eq_ignore_ascii_case(key));
        Ok(same.map_or_else(|| key.to_owned(), |tag| tag.name))
    }

    /// Gives a model a second name.
    pub fn copy(&self, source: &ModelRef, destination: &ModelRef) -> Result<()> {
        let (model, _hold) = self.find_held(source)?;
        let key = destination.tag_key().context("the new name needs a tag, not a digest")?;
        Ok(self.store.set_tag(&self.key_of(&key)?, model.manifest.digest())?)
    }

    /// Takes a name away from a model, and deletes what no other model needs. A pinned one stays.
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

    /// Takes a name away from a model. Its blobs stay until the next collection.
    pub fn remove(&self, tag: &TagEntry) -> Result<()> {
        self.store.remove_tag(&tag.name)?;
        self.recent.forget(&tag.digest);
        self.unlink(tag)
    }

    /// Takes a model that has lost its tag out of its repository, where a registry's client put it: unless another tag
    /// there names it.
    fn unlink(&self, tag: &TagEntry) -> Result<()> {
        let Some((repository, _)) = tag.name.rsplit_once(':') else { return Ok(()) };
        if !self.store.tags_of(repository)?.iter().any(|other| other.digest == tag.digest) {
            self.unlink_document(repository, &tag.digest, SystemTime::now())?;
        }
        Ok(())
    }
}

/// Contents under the name that was found.
fn named(tag: &TagEntry, contents: Contents) -> Result<Model> {
    let reference: ModelRef = tag.name.parse()?;
    let Contents { manifest, config, understood, own } = contents;
    Ok(Model { name: reference.to_string(), manifest, config, understood, modified: tag.modified, own })
}
