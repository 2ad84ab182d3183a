//! Layers: the blobs a manifest lists, with their names.

use std::collections::BTreeMap;

use content::{Descriptor, Digest, MediaType};

use crate::annotations;

/// One entry of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The blob.
    pub descriptor: Descriptor,
    /// Tensor name, group prefix or file name, as Ollama writes it.
    pub name: Option<String>,
    /// Further annotations. They repeat the name as [`annotations::TITLE`].
    pub annotations: BTreeMap<String, String>,
}

impl Layer {
    /// A layer without a name: template, system prompt and the like.
    pub fn new(descriptor: Descriptor) -> Self {
        Self { descriptor, name: None, annotations: BTreeMap::new() }
    }

    /// A layer with a name, which also becomes its title.
    pub fn named(descriptor: Descriptor, name: &str) -> Self {
        let annotations = BTreeMap::from([(annotations::TITLE.to_owned(), name.to_owned())]);
        Self { descriptor, name: Some(name.to_owned()), annotations }
    }

    /// The name: the field, or else the title annotation.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref().or_else(|| self.annotations.get(annotations::TITLE).map(String::as_str))
    }

    /// The media type.
    pub fn media_type(&self) -> &MediaType {
        &self.descriptor.media_type
    }

    /// The blob's digest.
    pub fn digest(&self) -> &Digest {
        &self.descriptor.digest
    }

    /// The blob's size in bytes.
    pub fn size(&self) -> u64 {
        self.descriptor.size
    }
}
