//! Manifests and indexes of every shape, with the blobs that belong to them.

use content::{Algorithm, Digest};
use serde_json::{Map, Value, json};

use super::client::{Blob, digest};

pub(super) const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const EMPTY: &str = "application/vnd.oci.empty.v1+json";
pub(super) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(super) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(super) const DOCKER_IMAGE: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(super) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// The artifact type of most of these tests.
pub(super) const EXAMPLE: &str = "application/vnd.example.conformance.v1";
/// A second artifact type.
pub(super) const OTHER: &str = "application/vnd.example.conformance.v2";

/// A manifest or an index in the form in which it is pushed.
#[derive(Clone)]
pub(super) struct Document {
    pub(super) digest: Digest,
    pub(super) media_type: String,
    pub(super) bytes: Vec<u8>,
    /// Digest of the subject, if it has one.
    pub(super) subject: Option<Digest>,
}

impl Document {
    /// Returns the document of a JSON value, written compactly.
    pub(super) fn new(algorithm: Algorithm, value: &Value) -> Self {
        Self::of_bytes(algorithm, serde_json::to_vec(value).expect("JSON"))
    }

    /// Returns the document of exactly these bytes.
    pub(super) fn of_bytes(algorithm: Algorithm, bytes: Vec<u8>) -> Self {
        let value: Value = serde_json::from_slice(&bytes).expect("JSON");
        let media_type = value["mediaType"].as_str().unwrap_or(IMAGE).to_owned();
        let subject = value["subject"]["digest"].as_str().map(|text| text.parse().expect("a digest"));
        Self { digest: digest(algorithm, &bytes), media_type, bytes, subject }
    }

    /// Returns a descriptor that refers to this document.
    pub(super) fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest.to_string(), "size": self.bytes.len()})
    }

    /// Returns the entry of this document in a list of referrers.
    pub(super) fn referrer(&self) -> Value {
        let value: Value = serde_json::from_slice(&self.bytes).expect("JSON");
        let mut entry = self.descriptor();
        let kind = value["artifactType"].as_str().or_else(|| value["config"]["mediaType"].as_str());
        if let Some(kind) = kind {
            entry["artifactType"] = kind.into();
        }
        if value["annotations"].is_object() {
            entry["annotations"] = value["annotations"].clone();
        }
        entry
    }
}

/// Documents, blobs and tags that are pushed together.
pub(super) struct Set {
    algorithm: Algorithm,
    label: String,
    pub(super) blobs: Vec<Blob>,
    /// Documents in an order in which they can be pushed.
    pub(super) documents: Vec<Document>,
    pub(super) tags: Vec<(String, Digest)>,
}

/// The properties of a manifest. Start from [`Parts::image`] or [`Parts::artifact`].
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) artifact_type: Option<&'static str>,
    pub(super) annotations: Map<String, Value>,
    /// The media type of the config; `{}` for an artifact.
    pub(super) config: &'static str,
    pub(super) layers: usize,
    pub(super) layer: &'static str,
    pub(super) subject: Option<Value>,
    pub(super) fields: Vec<(&'static str, Value)>,
}

impl Parts {
    pub(super) fn image() -> Self {
        let (config, layer) = (CONFIG, LAYER_GZIP);
        Self {
            artifact_type: None,
            annotations: Map::new(),
            config,
            layers: 2,
            layer,
            subject: None,
            fields: Vec::new(),
        }
    }

    pub(super) fn artifact(kind: &'static str) -> Self {
        Self { artifact_type: Some(kind), config: EMPTY, layers: 1, layer: kind, ..Self::image() }
    }

    pub(super) fn about(self, subject: Value) -> Self {
        Self { subject: Some(subject), ..self }
    }

    pub(super) fn annotated(mut self, name: &str, text: &str) -> Self {
        self.annotations.insert(name.to_owned(), text.into());
        self
    }
}

impl Set {
    pub(super) fn new(algorithm: Algorithm, label: &str) -> Self {
        Self { algorithm, label: label.to_owned(), blobs: Vec::new(), documents: Vec::new(), tags: Vec::new() }
    }

    /// Adds a blob unless it is already there, and returns its descriptor.
    pub(super) fn blob(&mut self, media_type: &str, bytes: &[u8]) -> Value {
        let blob = Blob::new(self.algorithm, bytes);
        let descriptor = json!({"mediaType": media_type, "digest": blob.digest.to_string(), "size": blob.bytes.len()});
        if self.blobs.iter().all(|other| other.digest != blob.digest) {
            self.blobs.push(blob);
        }
        descriptor
    }

    /// Returns bytes that no other set has.
    pub(super) fn unique(&self, size: usize) -> Vec<u8> {
        Blob::sample(self.algorithm, &format!("{} {}", self.label, self.blobs.len()), size).bytes
    }

    /// Adds a manifest and the blobs that it needs.
    pub(super) fn manifest(&mut self, parts: &Parts) -> Document {
        let layers: Vec<Value> = (0..parts.layers)
            .map(|_| {
                let bytes = self.unique(700);
                self.blob(parts.layer, &bytes)
            })
            .collect();
        let config = if parts.config == EMPTY {
            self.blob(EMPTY, b"{}")
        } else {
            let ids: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
            let config = json!({"author": self.label, "architecture": "amd64", "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": ids}, "number": self.blobs.len()});
            self.blob(parts.config, config.to_string().as_bytes())
        };
        self.manifest_of(parts, &config, &layers)
    }

    /// Adds a manifest of these descriptors.
    pub(super) fn manifest_of(&mut self, parts: &Parts, config: &Value, layers: &[Value]) -> Document {
        let mut value = json!({"schemaVersion": 2, "mediaType": IMAGE});
        self.complete(&mut value, parts, [("config", config.clone()), ("layers", layers.into())])
    }

    /// Adds an index of these documents.
    pub(super) fn index(&mut self, parts: &Parts, documents: &[Document]) -> Document {
        let entries: Vec<Value> = documents
            .iter()
            .zip(["amd64", "arm64"].into_iter().cycle())
            .map(|(document, architecture)| {
                let mut entry = document.descriptor();
                entry["platform"] = json!({"architecture": architecture, "os": "linux"});
                entry
            })
            .collect();
        let mut value = json!({"schemaVersion": 2, "mediaType": INDEX});
        self.complete(&mut value, parts, [("manifests", entries.into())])
    }

    /// Adds two manifests and an index of them. The index has the subject, annotations and fields.
    pub(super) fn index_of_two(&mut self, parts: &Parts) -> Document {
        let plain = Parts { subject: None, annotations: Map::new(), ..parts.clone() };
        let documents = [self.manifest(&plain), self.manifest(&plain)];
        self.index(parts, &documents)
    }

    fn complete<const N: usize>(&mut self, value: &mut Value, parts: &Parts, own: [(&str, Value); N]) -> Document {
        if let Some(kind) = parts.artifact_type {
            value["artifactType"] = kind.into();
        }
        for (name, field) in own {
            value[name] = field;
        }
        if let Some(subject) = &parts.subject {
            value["subject"] = subject.clone();
        }
        if !parts.annotations.is_empty() {
            value["annotations"] = parts.annotations.clone().into();
        }
        for (name, field) in &parts.fields {
            value[*name] = field.clone();
        }
        let document = Document::new(self.algorithm, value);
        self.documents.push(document.clone());
        document
    }

    /// Tags a document.
    pub(super) fn tag(&mut self, tag: &str, document: &Document) {
        self.tags.push((tag.to_owned(), document.digest));
    }

    /// Returns the document with this digest.
    pub(super) fn document(&self, digest: &Digest) -> &Document {
        self.documents.iter().find(|document| document.digest == *digest).expect("a document of the set")
    }
}
