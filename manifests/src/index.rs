//! Indexes: lists of manifests.

use std::collections::BTreeMap;

use content::{Descriptor, Digest, MediaType};

use crate::wire::WireIndex;
use crate::{Error, Layer, MAX_MANIFEST, media_types};

/// An OCI image index or a Docker manifest list, with the bytes it was parsed from.
#[derive(Clone, Debug)]
pub struct Index {
    raw: Vec<u8>,
    digest: Digest,
    media_type: MediaType,
    artifact_type: Option<String>,
    subject: Option<Descriptor>,
    manifests: Vec<Layer>,
    annotations: BTreeMap<String, String>,
}

impl Index {
    /// Reads an index.
    pub fn parse(raw: &[u8]) -> Result<Self, Error> {
        const WHAT: &str = "index";
        if raw.len() > MAX_MANIFEST {
            return Err(Error::TooLarge { what: WHAT, size: raw.len(), limit: MAX_MANIFEST });
        }
        let wire: WireIndex = serde_json::from_slice(raw).map_err(|e| Error::malformed(WHAT, e))?;
        if wire.schema_version != 2 {
            return Err(Error::malformed(WHAT, format!("schemaVersion is {}, expected 2", wire.schema_version)));
        }
        Ok(Self {
            raw: raw.to_vec(),
            digest: Digest::of(raw),
            media_type: match wire.media_type.as_deref() {
                Some(text) if text == media_types::DOCKER_INDEX.as_str() => media_types::DOCKER_INDEX,
                _ => media_types::INDEX,
            },
            artifact_type: wire.artifact_type,
            subject: wire.subject.map(|subject| subject.descriptor(WHAT)).transpose()?,
            manifests: wire.manifests.into_iter().map(|entry| entry.layer(WHAT)).collect::<Result<_, _>>()?,
            annotations: wire.annotations.unwrap_or_default(),
        })
    }

    /// The bytes as they were read.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The SHA-256 digest of [`raw`](Self::raw).
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The media type, OCI's or Docker's.
    pub fn media_type(&self) -> &MediaType {
        &self.media_type
    }

    /// The artifact type, if the index states it.
    pub fn artifact_type(&self) -> Option<&str> {
        self.artifact_type.as_deref()
    }

    /// The manifest that this index is about (OCI `subject`).
    pub fn subject(&self) -> Option<&Descriptor> {
        self.subject.as_ref()
    }

    /// The manifests in their order.
    pub fn manifests(&self) -> &[Layer] {
        &self.manifests
    }

    /// The annotations.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        &self.annotations
    }
}
