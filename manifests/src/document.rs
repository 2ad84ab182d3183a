//! Documents: a manifest or an index, distinguished by their bytes; and the digests they refer to.

use std::collections::BTreeMap;

use content::{Descriptor, Digest, MediaType};
use serde::Deserialize;

use crate::{Error, Index, Manifest, media_types};

/// A document that a tag can name.
#[derive(Clone, Debug)]
pub enum Document {
    /// One model.
    Manifest(Manifest),
    /// Several manifests.
    Index(Index),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// Parses either kind: by `mediaType` or, if that is missing, by the presence of `manifests`.
    pub fn parse(raw: &[u8]) -> Result<Self, Error> {
        let probe: Probe = serde_json::from_slice(raw).map_err(|e| Error::malformed("manifest", e))?;
        let is_index = match probe.media_type.as_deref() {
            Some(text) => [media_types::INDEX, media_types::DOCKER_INDEX].iter().any(|t| t.as_str() == text),
            None => probe.manifests.is_some(),
        };
        if is_index { Index::parse(raw).map(Self::Index) } else { Manifest::parse(raw).map(Self::Manifest) }
    }
}

impl Document {
    /// The media type, OCI's or Docker's.
    pub fn media_type(&self) -> &MediaType {
        match self {
            Self::Manifest(manifest) => manifest.media_type(),
            Self::Index(index) => index.media_type(),
        }
    }

    /// The artifact type, for listing and filtering referrers. For a manifest without
    /// `artifactType` it is the media type of the config.
    pub fn artifact_type(&self) -> Option<&str> {
        match self {
            Self::Manifest(manifest) => manifest.artifact_type().or(Some(manifest.config().media_type.as_str())),
            Self::Index(index) => index.artifact_type(),
        }
    }

    /// The document that this one is about (OCI `subject`).
    pub fn subject(&self) -> Option<&Descriptor> {
        match self {
            Self::Manifest(manifest) => manifest.subject(),
            Self::Index(index) => index.subject(),
        }
    }

    /// Digests that this document refers to. The subject is not included: garbage collection
    /// follows the edge from a subject to its referrers, not the reverse.
    pub fn children(&self) -> Children {
        match self {
            Self::Manifest(manifest) => {
                let layers = manifest.layers().iter().map(|layer| *layer.digest());
                let blobs = [manifest.config().digest].into_iter().chain(layers).collect();
                Children { manifests: Vec::new(), blobs }
            }
            Self::Index(index) => {
                let manifests = index.manifests().iter().map(|entry| *entry.digest()).collect();
                Children { manifests, blobs: Vec::new() }
            }
        }
    }

    /// The annotations.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        match self {
            Self::Manifest(manifest) => manifest.annotations(),
            Self::Index(index) => index.annotations(),
        }
    }
}

/// Digests that a document refers to: the edges that garbage collection follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// Manifests, which in turn refer to blobs.
    pub manifests: Vec<Digest>,
    /// Configs and layers.
    pub blobs: Vec<Digest>,
}

impl Children {
    /// Manifests and blobs.
    pub fn all(self) -> Vec<Digest> {
        self.manifests.into_iter().chain(self.blobs).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_an_index_from_a_manifest() {
        let digest = Digest::of(b"");
        let entry = format!(r#"{{"mediaType":"a/b","digest":"{digest}","size":0}}"#);
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{entry}]}}"#);
        assert!(matches!(Document::parse(index.as_bytes()), Ok(Document::Index(_))));
        let children = |raw: &str| Document::parse(raw.as_bytes()).map(|document| document.children());
        assert_eq!(children(&index).expect("index").manifests, [digest]);
        let manifest = format!(r#"{{"schemaVersion":2,"config":{entry},"layers":[{entry},{entry}]}}"#);
        assert_eq!(children(&manifest).expect("manifest").blobs, [digest; 3]);
        assert!(children("{\"schemaVersion\":2}").is_err());
    }
}
