//! Resolves a name at its registry: finds the manifest and its blobs, and checks the names of its
//! layers. Only manifests are fetched.

use std::collections::BTreeMap;

use content::operation::{Context, Result, Unclassified};
use content::{Descriptor, Digest};
use content::{bail, ensure};
use library::MAX_DOCUMENT;
use manifests::{Document, Manifest, ModelRef};
use registry::client::Remote;

/// Maximum depth of nested indexes.
const MAX_DEPTH: usize = 3;

/// Fetches the manifest of a model; for an index, the manifest for this machine.
pub(crate) async fn resolve(remote: &Remote, name: &ModelRef) -> Result<(Digest, Manifest)> {
    let mut reference = match name.digest() {
        Some(digest) => digest.to_string(),
        None => name.tag().unwrap_or(manifests::reference::DEFAULT_TAG).to_owned(),
    };
    for _ in 0..MAX_DEPTH {
        let (digest, raw) = remote.manifest(&reference).await?;
        match Document::parse(&raw).with_context(|| format!("manifest of `{name}`"))? {
            Document::Manifest(manifest) => return Ok((digest, manifest)),
            Document::Index(index) => reference = choose(&index, name)?.to_string(),
        }
    }
    bail!("`{name}` is an index of indexes, more than {MAX_DEPTH} deep")
}

/// The only manifest of an index, or the one for the architecture of this machine.
fn choose(index: &manifests::Index, name: &ModelRef) -> Result<Digest> {
    match index.manifests() {
        [] => bail!("`{name}` is an index without manifests"),
        [only] => Ok(*only.digest()),
        several => {
            let raw = serde_json::from_slice(index.raw());
            let raw: serde_json::Value =
                raw.internal().with_context(|| format!("the index of `{name}` cannot be read"))?;
            let machine = match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            };
            let fits = |entry: &serde_json::Value| entry["platform"]["architecture"] == machine;
            let position = raw["manifests"].as_array().and_then(|entries| entries.iter().position(fits));
            let chosen = position.and_then(|position| several.get(position)).map(|entry| *entry.digest());
            chosen.with_context(|| {
                let count = several.len();
                format!(
                    "`{name}` is an index of {count} manifests, none of them for this machine; name one by its digest"
                )
            })
        }
    }
}

/// Every blob of a manifest once. Two sizes for one digest are an error.
pub(crate) fn blobs(manifest: &Manifest) -> Result<Vec<Descriptor>> {
    let mut blobs: BTreeMap<Digest, &Descriptor> = BTreeMap::new();
    for descriptor in manifest.layers().iter().map(|layer| &layer.descriptor).chain([manifest.config()]) {
        let known = blobs.entry(descriptor.digest).or_insert(descriptor);
        ensure!(
            known.size == descriptor.size,
            "the manifest has two sizes for blob `{}`: {} and {} bytes",
            descriptor.digest,
            known.size,
            descriptor.size
        );
    }
    let mut blobs: Vec<Descriptor> = blobs.into_values().cloned().collect();
    // The largest blobs first, so that the last ones to transfer are small.
    blobs.sort_by(|a, b| b.size.cmp(&a.size).then(a.digest.cmp(&b.digest)));
    Ok(blobs)
}

/// The blobs of a manifest with their names: the layer's name, or else its media type; `config` for
/// the config.
pub(crate) fn named_blobs(manifest: &Manifest) -> impl Iterator<Item = (&str, &Descriptor)> {
    let layers = manifest.layers().iter();
    let named = layers.map(|layer| (layer.name().unwrap_or(layer.media_type().as_str()), &layer.descriptor));
    named.chain([("config", manifest.config())])
}

/// Checks the names of a manifest's layers before anything is fetched.
pub(crate) fn check_names(manifest: &Manifest, name: &ModelRef) -> Result<()> {
    for layer in manifest.layers() {
        let layer_name = layer.name().unwrap_or_default();
        let leaves = layer_name.starts_with(['/', '\\']) || layer_name.split(['/', '\\']).any(|part| part == "..");
        ensure!(!leaves, "`{name}` has a layer called `{layer_name}`, which is no name for a file or tensor");
    }
    ensure!(manifest.config().size <= MAX_DOCUMENT, "`{name}` has a config of {} bytes", manifest.config().size);
    Ok(())
}
