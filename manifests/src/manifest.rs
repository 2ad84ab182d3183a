//! Manifests: the list of blobs that make a model.

use std::collections::BTreeMap;

use content::{Descriptor, Digest, MediaType};

use crate::wire::{WireDescriptor, WireManifest};
use crate::{Error, Layer, MAX_MANIFEST, annotations, media_types};

/// An OCI image manifest or a Docker schema 2 manifest, with the bytes it was parsed from.
///
/// # Examples
///
/// ```
/// use lode_manifests::Manifest;
///
/// let raw = br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
///     "config":{"mediaType":"application/vnd.oci.empty.v1+json","size":2,
///     "digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
///     "layers":[]}"#;
/// let manifest = Manifest::parse(raw)?;
/// assert_eq!(manifest.raw(), raw);
/// assert_eq!(manifest.layers().len(), 0);
/// # Ok::<(), lode_manifests::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Manifest {
    raw: Vec<u8>,
    digest: Digest,
    media_type: MediaType,
    artifact_type: Option<String>,
    config: Descriptor,
    layers: Vec<Layer>,
    subject: Option<Descriptor>,
    annotations: BTreeMap<String, String>,
}

impl Manifest {
    /// Parses a manifest.
    pub fn parse(raw: &[u8]) -> Result<Self, Error> {
        const WHAT: &str = "manifest";
        if raw.len() > MAX_MANIFEST {
            return Err(Error::TooLarge { what: WHAT, size: raw.len(), limit: MAX_MANIFEST });
        }
        let wire: WireManifest = serde_json::from_slice(raw).map_err(|e| Error::malformed(WHAT, e))?;
        if wire.schema_version != 2 {
            return Err(Error::malformed(WHAT, format!("schemaVersion is {}, expected 2", wire.schema_version)));
        }
        let media_type = match wire.media_type.as_deref() {
            None => media_types::MANIFEST,
            Some(text) if text == media_types::MANIFEST.as_str() => media_types::MANIFEST,
            Some(text) if text == media_types::DOCKER_MANIFEST.as_str() => media_types::DOCKER_MANIFEST,
            Some(other) => return Err(Error::malformed(WHAT, format!("mediaType `{other}` is not a manifest's"))),
        };
        Ok(Self {
            digest: Digest::of(raw),
            raw: raw.to_vec(),
            media_type,
            artifact_type: wire.artifact_type,
            config: wire.config.descriptor(WHAT)?,
            layers: wire.layers.into_iter().map(|layer| layer.layer(WHAT)).collect::<Result<_, _>>()?,
            subject: wire.subject.map(|subject| subject.descriptor(WHAT)).transpose()?,
            annotations: wire.annotations.unwrap_or_default(),
        })
    }

    /// The bytes as they were parsed. A push sends exactly these.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The SHA-256 digest of [`raw`](Self::raw): the model's id.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The media type, OCI's or Docker's.
    pub fn media_type(&self) -> &MediaType {
        &self.media_type
    }

    /// The artifact type, if the manifest states it.
    pub fn artifact_type(&self) -> Option<&str> {
        self.artifact_type.as_deref()
    }

    /// The config blob.
    pub fn config(&self) -> &Descriptor {
        &self.config
    }

    /// The layers in their order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The manifest that this one is about (OCI `subject`).
    pub fn subject(&self) -> Option<&Descriptor> {
        self.subject.as_ref()
    }

    /// The manifest that this one was derived from, by its annotation.
    pub fn base(&self) -> Option<Digest> {
        self.annotations().get(annotations::BASE)?.parse().ok()
    }

    /// The annotations.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        &self.annotations
    }

    /// The layers of one type, in their order.
    pub fn layers_of(&self, media_type: MediaType) -> impl Iterator<Item = &Layer> {
        self.layers.iter().filter(move |layer| *layer.media_type() == media_type)
    }

    /// The file layer called `name`.
    pub fn json(&self, name: &str) -> Option<&Layer> {
        self.layers_of(media_types::JSON).find(|layer| layer.name() == Some(name))
    }

    /// Bytes of the config and all layers. Each blob counts once.
    pub fn total_size(&self) -> u64 {
        let blobs: BTreeMap<_, _> = self
            .layers
            .iter()
            .map(|layer| &layer.descriptor)
            .chain([&self.config])
            .map(|descriptor| (descriptor.digest, descriptor.size))
            .collect();
        blobs.values().fold(0, |sum, size| sum.saturating_add(*size))
    }
}

/// The content of a new manifest. The same content always gives the same bytes: there is no time in
/// it.
#[derive(Clone, Debug)]
pub struct ManifestBuilder {
    /// The config blob.
    pub config: Descriptor,
    /// The layers in their order.
    pub layers: Vec<Layer>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
}

impl ManifestBuilder {
    /// Serializes the OCI manifest. Fails with [`Error::TooLarge`] above the size limit of
    /// registries.
    pub fn build(&self) -> Result<Manifest, Error> {
        let wire = WireManifest {
            schema_version: 2,
            media_type: Some(media_types::MANIFEST.to_string()),
            artifact_type: None,
            config: WireDescriptor::from(&self.config),
            layers: self.layers.iter().map(WireDescriptor::from).collect(),
            subject: None,
            annotations: Some(self.annotations.clone()).filter(|map| !map.is_empty()),
        };
        let raw = serde_json::to_vec(&wire).map_err(|e| Error::malformed("manifest", e))?;
        Manifest::parse(&raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_bytes() {
        let text = br#"{ "schemaVersion": 2,  "config": {"mediaType":"a/b","digest":
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0},"x":1}"#;
        let manifest = Manifest::parse(text).expect("white space and unknown fields are fine");
        assert_eq!(manifest.raw(), text);
        assert_eq!(*manifest.digest(), Digest::of(text));
    }

    #[test]
    fn builds_the_same_bytes_again() {
        let blob = Descriptor::of(media_types::TENSOR, b"tensor");
        let builder = ManifestBuilder {
            config: Descriptor::of(media_types::CONFIG, b"{}"),
            layers: vec![Layer::named(blob.clone(), "a.weight"), Layer::named(blob, "b.weight")],
            annotations: BTreeMap::new(),
        };
        let manifest = builder.build().expect("builds");
        assert_eq!(manifest.raw(), builder.build().expect("builds").raw());
        assert_eq!(manifest.total_size(), 8, "a shared blob counts once");
        assert_eq!(
            manifest.digest().to_string(),
            "sha256:45bef6c905c27bdf1f90988f41c92b4961d0bc081688a8840bf8fb3144175894",
            "golden: {}",
            String::from_utf8_lossy(manifest.raw())
        );
    }

    #[test]
    fn refuses() {
        for bad in [
            &b""[..],
            b"[]",
            b"{}",
            br#"{"schemaVersion":1,"config":{"mediaType":"a/b","digest":"sha256:00","size":0}}"#,
            br#"{"schemaVersion":2,"config":{"mediaType":"a/b","digest":"sha256:00","size":0}}"#,
            br#"{"schemaVersion":2,"config":{"mediaType":"a/b","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":-1}}"#,
            br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","config":{"mediaType":"a/b","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}}"#,
        ] {
            assert!(Manifest::parse(bad).is_err(), "{} was accepted", String::from_utf8_lossy(bad));
        }
        let long = vec![b' '; MAX_MANIFEST + 1];
        assert!(matches!(Manifest::parse(&long), Err(Error::TooLarge { .. })));
    }
}
