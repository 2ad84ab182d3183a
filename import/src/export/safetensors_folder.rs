//! A Hugging Face folder of any model whose numbers can be read.

use std::sync::Arc;

use formats::{Dtype, Encoding};
use manifests::Layer;
use serde_json::{Map, Value};

use super::array::{Change, Entry, plain, stored};
use super::rounding::Rounding;
use super::shards::{Label, shards};
use super::{ExportFile, ExportPlan, documents};
use crate::{Error, OpenBlob, StoredTensor};

/// A model in a store.
#[derive(Clone, Copy)]
pub struct StoredModel<'a> {
    /// Every tensor.
    pub tensors: &'a [StoredTensor],
    /// Every layer.
    pub layers: &'a [Layer],
    /// Opens its blobs.
    pub open: &'a Arc<OpenBlob>,
}

/// How a folder is to be written.
#[derive(Clone, Copy, Debug)]
pub struct FolderOptions {
    /// F32, F16 or BF16 for all floats. `None`: floats as they are, BF16 for what is quantized.
    pub dtype: Option<Dtype>,
    /// The most bytes of tensors in one file.
    pub shard_size: u64,
}

/// The folder of a model that has a `config.json`, names and all.
///
/// # Errors
/// [`Error::Source`] where the model has no config, or a tensor cannot be in such a folder.
pub fn safetensors_plan(model: &StoredModel<'_>, options: FolderOptions) -> Result<ExportPlan, Error> {
    let Some(mut config) = documents::config(model.layers, &**model.open)? else {
        return Err(Error::Source("the model has no `config.json`, which the folder needs".to_owned()));
    };
    let mut rounding = Rounding::default();
    let (mut entries, mut expanded) = (Vec::new(), None);
    for tensor in model.tensors {
        refuse_other_layout(tensor)?;
        let dtype = target(tensor, options.dtype);
        if !matches!(tensor.encoding, Encoding::Plain(_)) {
            expanded = dtype;
        }
        entries.push(entry(tensor, dtype, &Change::none(&tensor.name), &mut rounding)?);
    }
    adapt(&mut config, options.dtype, expanded);
    let mut files = tensor_files(entries, options.shard_size)?;
    files.push(documents::config_file(&config, model.layers, &**model.open)?);
    files.extend(documents::copied(model.layers)?);
    let losses = rounding.losses().into_iter().chain(documents::losses(model.layers)).collect();
    ExportPlan::new(files, losses)
}

pub(super) fn tensor_files(entries: Vec<Entry>, shard_size: u64) -> Result<Vec<ExportFile>, Error> {
    shards(entries, shard_size, Label { format: "pt", always_indexed: false, parameters: None })
}

/// A tensor as it is, or as floats of that type.
pub(super) fn entry(
    tensor: &StoredTensor,
    dtype: Option<Dtype>,
    change: &Change,
    rounding: &mut Rounding,
) -> Result<Entry, Error> {
    match (dtype, tensor.parts.first()) {
        (Some(dtype), _) => {
            rounding.note(tensor, dtype);
            plain(tensor, dtype, change)
        }
        (None, Some(part)) => Ok(stored(part, &change.name)),
        (None, None) => Err(Error::Source(format!("tensor `{}` has no array", tensor.name))),
    }
}

/// What a tensor is to become; `None` where it is copied.
pub(super) fn target(tensor: &StoredTensor, wanted: Option<Dtype>) -> Option<Dtype> {
    match tensor.encoding {
        Encoding::Plain(Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64) => wanted,
        // Whole numbers and truth values are no weights.
        Encoding::Plain(_) => None,
        _ => Some(wanted.unwrap_or(Dtype::Bf16)),
    }
}

/// Makes a config say what the folder has.
fn adapt(config: &mut Map<String, Value>, wanted: Option<Dtype>, expanded: Option<Dtype>) {
    if expanded.is_some() {
        documents::without_quantization(config);
    }
    if let Some(dtype) = wanted.or(expanded) {
        documents::with_dtype(config, dtype);
    }
}

/// Where quantizing has changed the layout of a tensor, expanding its numbers would not bring it back.
fn refuse_other_layout(tensor: &StoredTensor) -> Result<(), Error> {
    let name = &tensor.name;
    let quantized = !matches!(tensor.encoding, Encoding::Plain(_));
    let reason = if quantized && name.contains(".switch_mlp.") {
        "experts that MLX has stacked"
    } else if quantized && tensor.parts.iter().any(|part| part.name.ends_with("_blocks")) {
        "experts whose float form lies the other way round"
    } else {
        return Ok(());
    };
    Err(Error::Source(format!("tensor `{name}`: {reason} cannot be expanded to Hugging Face's layout yet")))
}
