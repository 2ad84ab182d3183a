//! The requested resources, and the model that contains them. Each case has its own variant of the
//! model, so that no case finds content of another one in the store.

use std::collections::HashMap;

use axum::body::Bytes;
use content::Digest;
use serde_json::{Value, json};

use super::lies::Lie;
use crate::export::exported;
use crate::server::Server;
use crate::stored::{self, created};
use crate::support::{entries, name, read, tiny_model};
use crate::synthetic::llama;

/// The commit that the hub reports.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const TEMPLATE_TYPE: &str = "application/vnd.ollama.image.template";
const WEIGHTS: &str = "model.safetensors";

/// The requested resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A manifest by its tag.
    Tag,
    /// A manifest by its digest.
    Digest,
    /// An index for several platforms, by its tag.
    Index,
    /// The index's manifest for this machine.
    Platform,
    Config,
    /// The largest tensor of the tiny model: 40 KiB.
    Tensor,
    /// A template of less than 100 bytes.
    Template,
    /// A GGUF file in a manifest of Ollama's format, read by ranges.
    Gguf,
    /// The hub's listing of a repository.
    HubListing,
    /// A small file of a hub: a single range covers all of it.
    HubFile,
    /// Safetensors weights of a hub, read by ranges.
    HubWeights,
    /// The token that the registry requires for every request.
    Token,
}

impl Subject {
    pub(super) const ALL: [(Self, &str); 12] = [
        (Self::Tag, "tag"),
        (Self::Digest, "digest"),
        (Self::Index, "index"),
        (Self::Platform, "platform"),
        (Self::Config, "config"),
        (Self::Tensor, "tensor"),
        (Self::Template, "template"),
        (Self::Gguf, "gguf"),
        (Self::HubListing, "hub-listing"),
        (Self::HubFile, "hub-file"),
        (Self::HubWeights, "hub-weights"),
        (Self::Token, "token"),
    ];

    /// Whether the subject is a manifest or an index.
    pub(super) fn is_document(self) -> bool {
        matches!(self, Self::Tag | Self::Digest | Self::Index | Self::Platform)
    }

    /// Whether the subject is a blob that is stored unchanged.
    pub(super) fn is_blob(self) -> bool {
        matches!(self, Self::Config | Self::Tensor | Self::Template)
    }

    pub(super) fn is_hub(self) -> bool {
        matches!(self, Self::HubListing | Self::HubFile | Self::HubWeights)
    }

    /// Returns words by which an error may name the subject instead of the place.
    pub(super) fn nouns(self) -> &'static [&'static str] {
        match self {
            Self::Config => &["config"],
            Self::HubListing => &["hub", "listing", "sha256", "escaped", "repository"],
            _ => &[],
        }
    }
}

/// The parts of all cases' models.
pub(super) struct Base {
    manifest: Value,
    blobs: HashMap<String, Bytes>,
    gguf: Vec<u8>,
    hub: HashMap<String, Bytes>,
}

/// The model of a case: the resources below its path component.
pub(super) struct Model {
    pub(super) resources: HashMap<String, Bytes>,
    /// The resource that the case is about.
    pub(super) target: String,
    /// The digest in the model's reference, if it has one.
    pub(super) digest: Option<String>,
}

impl Base {
    /// Builds the tiny model with a template, and a model whose weights exceed the first window of
    /// a ranged read (1 MiB).
    pub(super) async fn new() -> Self {
        let server = Server::start(&[]).await;
        server.create("tiny", &tiny_model()).await;
        let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
        let plain = json!({"model": "plain", "from": "tiny", "template": template, "stream": false});
        server.ask("/api/create", &plain).await;
        let manifest = created(&server.home(), "plain");
        let blob = |digest: String| (digest.clone(), Bytes::from(stored::blob(&server.home(), &digest)));
        let blobs = manifest.blobs().into_keys().map(blob).collect();
        let folder = llama(1, 256);
        let hub: HashMap<String, Bytes> =
            entries(folder.path()).iter().map(|path| (name(path), Bytes::from(read(path)))).collect();
        server.create("large", folder.path()).await;
        let place = tempfile::tempdir().expect("a temporary folder");
        let file = place.path().join("large.gguf");
        exported(&server, "large", &file, &["--format", "gguf", "--lossy"]);
        let gguf = read(&file);
        assert!(gguf.len() > 1 << 20 && hub[WEIGHTS].len() > 1 << 20, "ranges are of files with more than 1 MiB");
        Self { manifest: manifest.json, blobs, gguf, hub }
    }

    /// Returns the model of a case. `number` makes it differ from the models of all other cases;
    /// `lie` changes its documents.
    pub(super) fn model(&self, subject: Subject, number: u16, lie: Option<Lie>) -> Model {
        let mut resources = HashMap::from([(String::new(), Bytes::from_static(br#"{"token":"let-in"}"#))]);
        if subject.is_hub() {
            let target = self.hub_files(subject, number, lie, &mut resources);
            return Model { resources, target, digest: None };
        }
        let mut manifest = match subject {
            Subject::Gguf => self.foreign(number, &mut resources),
            _ => self.own(subject, number, lie, &mut resources),
        };
        let blob = match subject {
            Subject::Config | Subject::Tensor | Subject::Template | Subject::Gguf => {
                let descriptor = descriptor(&mut manifest, subject);
                let target = format!("/blobs/{}", text(&descriptor["digest"]));
                if let Some(lie) = lie {
                    lie.describe(descriptor);
                }
                Some(target)
            }
            _ => None,
        };
        let is_manifest = matches!(subject, Subject::Tag | Subject::Digest);
        let counted = lie.filter(|_| is_manifest).map_or_else(|| manifest.clone(), |lie| lie.layers(&manifest));
        let raw = raw(&counted, lie.filter(|_| is_manifest));
        let digest = Digest::of(&raw).to_string();
        resources.insert(format!("/manifests/{digest}"), raw.clone());
        let latest = match subject {
            Subject::Index | Subject::Platform => index(&raw, lie),
            _ => raw,
        };
        resources.insert("/manifests/latest".to_owned(), latest);
        if let (Subject::Token, Some(lie)) = (subject, lie) {
            resources.insert(String::new(), lie.json(br#"{"token":"let-in"}"#, r#""token":"other""#));
        }
        let target = match subject {
            Subject::Tag | Subject::Index => "/manifests/latest".to_owned(),
            Subject::Digest | Subject::Platform => format!("/manifests/{digest}"),
            _ => blob.unwrap_or_default(),
        };
        Model { resources, target, digest: (subject == Subject::Digest).then_some(digest) }
    }

    /// Returns the manifest of the tiny model as Lode stores it.
    fn own(&self, subject: Subject, number: u16, lie: Option<Lie>, resources: &mut HashMap<String, Bytes>) -> Value {
        let mut manifest = self.manifest.clone();
        manifest["annotations"]["org.example.case"] = json!(number.to_string());
        for (digest, bytes) in &self.blobs {
            resources.insert(format!("/blobs/{digest}"), bytes.clone());
        }
        if subject.is_blob() {
            let descriptor = descriptor(&mut manifest, subject);
            let bytes = &self.blobs[&text(&descriptor["digest"])];
            let bytes = match subject {
                Subject::Tensor => numbered(bytes, number),
                Subject::Template => [&bytes[..], format!("{{# {number} #}}").as_bytes()].concat(),
                // The config is an object; unknown fields in it are ignored.
                _ => [format!("{{\"case\":\"{number}\",").as_bytes(), &bytes[1..]].concat(),
            };
            let bytes = match lie {
                Some(lie) if subject == Subject::Config => lie.json(&bytes, r#""model_format":"x""#),
                _ => bytes.into(),
            };
            describe(descriptor, bytes, resources);
        }
        manifest
    }

    /// Returns the manifest of a GGUF file in Ollama's format.
    fn foreign(&self, number: u16, resources: &mut HashMap<String, Bytes>) -> Value {
        let mut layer = json!({"mediaType": "application/vnd.ollama.image.model"});
        describe(&mut layer, numbered(&self.gguf, number).into(), resources);
        let mut config = json!({"mediaType": "application/vnd.docker.container.image.v1+json"});
        describe(&mut config, Bytes::from_static(b"{}"), resources);
        json!({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": [layer]})
    }

    /// Adds the files of a hub, and returns the resource that the case is about.
    fn hub_files(
        &self,
        subject: Subject,
        number: u16,
        lie: Option<Lie>,
        resources: &mut HashMap<String, Bytes>,
    ) -> String {
        let place = |file: &str| format!("/resolve/{COMMIT}/{file}");
        let mut siblings = Vec::new();
        for (file, bytes) in &self.hub {
            let is_large = file == WEIGHTS;
            let bytes = if is_large { numbered(bytes, number).into() } else { bytes.clone() };
            let mut sibling = json!({"rfilename": file, "size": bytes.len()});
            if is_large {
                sibling["lfs"] = json!({"sha256": Digest::of(&bytes).hex(), "size": bytes.len()});
                if let Some(lie) = lie {
                    lie.sibling(&mut sibling);
                }
            }
            siblings.push(sibling);
            resources.insert(place(file), bytes);
        }
        let listing = json!({"sha": COMMIT, "siblings": siblings});
        let listing = lie.map_or_else(|| listing.clone(), |lie| lie.siblings(&listing));
        let twice = format!("\"sha\":\"{COMMIT}\"");
        let listing = listing.to_string().into_bytes();
        let listing = lie.map_or_else(|| Bytes::from(listing.clone()), |lie| lie.json(&listing, &twice));
        resources.insert("/revision/main".to_owned(), listing);
        match subject {
            Subject::HubListing => "/revision/main".to_owned(),
            Subject::HubFile => place("config.json"),
            _ => place(WEIGHTS),
        }
    }
}

/// Returns the descriptor of the subject.
fn descriptor(manifest: &mut Value, subject: Subject) -> &mut Value {
    if subject == Subject::Config {
        return &mut manifest["config"];
    }
    let layers = manifest["layers"].as_array_mut().expect("layers");
    let found = match subject {
        Subject::Template => layers.iter_mut().find(|layer| layer["mediaType"] == TEMPLATE_TYPE),
        _ => layers.iter_mut().max_by_key(|layer| layer["size"].as_u64()),
    };
    found.expect("the model has such a layer")
}

/// Sets a descriptor to these bytes, and adds the blob to the resources.
fn describe(descriptor: &mut Value, bytes: Bytes, resources: &mut HashMap<String, Bytes>) {
    let digest = Digest::of(&bytes).to_string();
    descriptor["digest"] = json!(digest);
    descriptor["size"] = json!(bytes.len());
    resources.insert(format!("/blobs/{digest}"), bytes);
}

/// Returns the manifest's bytes, which a lie may change.
fn raw(manifest: &Value, lie: Option<Lie>) -> Bytes {
    let text = manifest.to_string().into_bytes();
    match lie {
        Some(lie) => lie.json(&text, r#""schemaVersion":2"#),
        None => text.into(),
    }
}

/// Returns an index with the manifest for each kind of machine.
fn index(manifest: &Bytes, lie: Option<Lie>) -> Bytes {
    let digest = Digest::of(manifest).to_string();
    let entry = |architecture: &str| {
        let platform = json!({"os": "linux", "architecture": architecture});
        json!({"mediaType": MANIFEST_TYPE, "digest": digest, "size": manifest.len(), "platform": platform})
    };
    let mut entries = vec![entry("amd64"), entry("arm64")];
    if let Some(lie) = lie {
        for entry in &mut entries {
            lie.describe(entry);
        }
        entries = lie.entries(entries);
    }
    raw(&json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}), lie)
}

/// Changes the last bytes, which belong to the last tensor or to padding.
fn numbered(bytes: &[u8], number: u16) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let end = bytes.len() - 2;
    for (byte, other) in bytes[end..].iter_mut().zip(number.to_le_bytes()) {
        *byte ^= other;
    }
    bytes
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}
