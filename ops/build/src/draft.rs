//! A model whose blobs are in the store, before it has a manifest and a name.

use std::collections::BTreeMap;
use std::time::SystemTime;

use content::ensure;
use content::operation::Result;
use content::{Amount, Digest, Observer, text};
use import::{Inventory, NamedFile};
use library::{FileDigests, Library, UnsupportedReason};
use manifests::config::RootFs;
use manifests::{Document, Layer, ManifestBuilder, ModelConfig, ModelRef, annotations, media_types};
use serde_json::{Map, Value};
use store::TagEntry;

use crate::target::{StoreTarget, ensure_space};

/// The result of a create.
#[derive(Clone, Debug)]
pub struct Created {
    /// Tensor blobs that were new.
    pub new: Amount,
    /// Tensor blobs that the store already had.
    pub shared: Amount,
}

/// A manifest before it is written.
#[derive(Debug)]
pub struct Draft {
    /// Layers, in the order of the manifest.
    pub layers: Vec<Layer>,
    /// Facts about the model that are known without reading a tensor.
    pub config: ModelConfig,
    /// The manifest that the model was made from.
    pub base: Option<Digest>,
    /// Annotations in addition to the ones that every model has.
    pub annotations: BTreeMap<String, String>,
    /// Default generation parameters.
    pub parameters: Map<String, Value>,
    /// Digests of source files, as far as they are known.
    pub files: FileDigests,
    /// Tensor blobs that were new.
    pub new: Amount,
    /// Tensor blobs that the store already had.
    pub shared: Amount,
}

impl Draft {
    /// Writes config and manifest, and gives the model the name `key`.
    ///
    /// # Errors
    /// Errors of the store, or a tensor of the model cannot be read.
    pub fn finish(
        mut self,
        library: &Library,
        target: &StoreTarget<'_>,
        key: &str,
        observer: &dyn Observer,
    ) -> Result<Created> {
        observer.status("writing manifest".to_owned());
        for layer in &self.layers {
            ensure!(
                target.keeps(layer.digest(), layer.size())?,
                "blob `{}` of the new model was removed meanwhile; try again",
                layer.digest()
            );
        }
        let manifest = self.manifest(target)?;
        let stored = target.bytes(media_types::MANIFEST, manifest.raw())?;
        ensure!(stored.digest == *manifest.digest(), "the manifest was changed on its way to the store");
        library.describe(manifest.digest(), &Document::parse(manifest.raw())?);
        // This precedes the tag, so that a model with unreadable tensors replaces no existing
        // model. It also caches the catalogue: the first load need not read the headers again.
        library.catalogue(&manifest)?;
        match library.obstacle(&manifest)? {
            UnsupportedReason::None => {
                let unread = library.unread_gguf_keys(&manifest)?;
                if !unread.is_empty() {
                    let keys = unread.join("`, `");
                    observer.status(format!(
                        "note: its GGUF header has `{keys}`, which this version of Lode does not read: if that changes what the model \
                         computes, answers differ from those of the program that wrote it"
                    ));
                }
            }
            // It may be stored for later, or for other programs.
            other => {
                if let Some(note) = other.note() {
                    observer.status(note);
                }
            }
        }
        if !self.files.is_empty() {
            library.record_file_digests(manifest.digest(), &self.files)?;
        }
        let name = library.key_of(key)?;
        // This precedes the tag: afterwards, another client may remove the name, and a lookup by it
        // would fail.
        let tag = TagEntry { name: name.clone(), digest: *manifest.digest(), modified: SystemTime::now() };
        if library.capabilities(&library.model_of(&tag)?)?.only_completes() {
            observer.status("note: it has no chat template: it completes text, it does not chat".to_owned());
        }
        library.names().set(&name, manifest.digest())?;
        tracing::info!(model = key, digest = %manifest.digest(), "created");
        Ok(Created { new: self.new, shared: self.shared })
    }

    pub(crate) fn manifest(&mut self, target: &StoreTarget<'_>) -> Result<manifests::Manifest> {
        let diff_ids = self.layers.iter().map(|layer| layer.digest().to_string()).collect();
        self.config.rootfs = RootFs { kind: "layers".to_owned(), diff_ids };
        let config = target.bytes(media_types::CONFIG, &self.config.to_bytes()?)?;
        let lode = self.config.lode.clone().unwrap_or_default();
        let mut notes = BTreeMap::from([
            (annotations::ARCHITECTURE.to_owned(), self.config.model_family.clone()),
            (annotations::PARAMETERS.to_owned(), lode.parameter_count.to_string()),
            (annotations::QUANTIZATION.to_owned(), self.config.file_type.clone()),
        ]);
        notes.extend(self.annotations.clone());
        notes.extend(self.base.map(|base| (annotations::BASE.to_owned(), base.to_string())));
        Ok(ManifestBuilder { config, layers: self.layers.clone(), annotations: notes }.build()?)
    }
}

/// Imports files with a given inventory, from any source.
///
/// # Errors
/// The files are not a model that can be imported, or the disk is full.
pub fn import_into(
    library: &Library,
    target: &StoreTarget<'_>,
    (files, inventory): (&[NamedFile], &Inventory),
    name: &ModelRef,
    observer: &dyn Observer,
) -> Result<Draft> {
    for file in import::unused_weights(files, inventory) {
        observer.status(format!("note: `{}` is not part of the model and is left out", file.name));
    }
    if let Some(note) = &inventory.note {
        observer.status(format!("note: {note}"));
    }
    let plan = import::plan(inventory)?;
    let total = plan.blobs.iter().map(import::PlannedBlob::size).sum();
    let copied = if target.is_in_place() { plan.bytes_elsewhere(inventory) } else { total };
    ensure_space(library, copied)?;
    if target.is_in_place() && copied > 0 {
        let copied = text::size(copied);
        observer.status(format!(
            "note: {copied} of tensors are converted, or not in local files, and are written to the store"
        ));
    }
    observer.status(format!("importing {name} ({} tensors)", inventory.tensors.len()));
    let progress = import::ImportProgress::new(observer, total);
    let imported = import::write(inventory, &plan, target, &progress)?;
    observer.bytes(total, total);
    let known = inventory.files.iter().filter_map(|file| Some((file.name.clone(), file.source.digest()?)));
    Ok(Draft {
        files: known.collect(),
        layers: imported.layers,
        config: import::describe(inventory),
        base: None,
        annotations: BTreeMap::new(),
        parameters: Map::new(),
        new: imported.new,
        shared: imported.shared,
    })
}
