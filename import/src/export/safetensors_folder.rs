//! A Hugging Face folder of any model whose numbers can be read.

use std::sync::Arc;

use formats::gguf::{GgufModel, tensors, to_hugging_face};
use formats::{Dtype, Encoding, HyperParameters};
use manifests::Layer;
use serde_json::{Map, Value};

use super::array::{Change, Entry, plain, stored};
use super::changes::change;
use super::rounding::Rounding;
use super::shards::{Label, shards};
use super::{ExportFile, ExportPlan, Piece, documents, gguf_source};
use crate::{Error, OpenBlob, RowOrder, StoredPart, StoredTensor, TensorSource};

/// A model in a store.
#[derive(Clone, Copy)]
pub struct StoredModel<'a> {
    /// What the model is called, without host and tag.
    pub name: &'a str,
    /// The numbers of its architecture, where that is known.
    pub hyper: Option<&'a HyperParameters>,
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

/// The folder of any model. What came as GGUF gets the names, the order of rows and the documents of such a folder.
///
/// # Errors
/// [`Error::Source`] where there is no config and none can be made, or a tensor cannot be in such a folder.
pub fn safetensors_plan(model: &StoredModel<'_>, options: FolderOptions) -> Result<ExportPlan, Error> {
    let mut folder = Folder::default();
    let (mut files, mut losses) = match gguf_source::header(model.layers, &**model.open)? {
        Some(header) => folder.of_gguf(model, &header, options)?,
        None => (folder.of_folder(model, options)?, Vec::new()),
    };
    losses.extend(folder.rounding.losses());
    losses.extend(documents::losses(model.layers));
    let label = Label { format: "pt", always_indexed: false, parameters: None };
    let mut all = shards(folder.entries, options.shard_size, label)?;
    all.append(&mut files);
    ExportPlan::new(all, losses)
}

/// The tensors of a folder while they are collected.
#[derive(Default)]
struct Folder {
    entries: Vec<Entry>,
    rounding: Rounding,
}

impl Folder {
    /// From a folder to a folder: all names stay.
    fn of_folder(&mut self, model: &StoredModel<'_>, options: FolderOptions) -> Result<Vec<ExportFile>, Error> {
        let Some(mut config) = documents::config(model.layers, &**model.open)? else {
            return Err(Error::Source("the model has no `config.json`, which the folder needs".to_owned()));
        };
        let mut expanded = None;
        for tensor in model.tensors {
            refuse_other_layout(tensor)?;
            let dtype = target(tensor, options.dtype);
            if !matches!(tensor.encoding, Encoding::Plain(_)) {
                expanded = dtype;
            }
            self.add(tensor, dtype, &Change::none(&tensor.name))?;
        }
        adapt(&mut config, options.dtype, expanded);
        let mut files = vec![documents::config_file(&config, model.layers, &**model.open)?];
        files.extend(documents::copied(model.layers)?);
        Ok(files)
    }

    /// From a GGUF file; what could not be said is given beside the documents.
    fn of_gguf(
        &mut self,
        model: &StoredModel<'_>,
        header: &[u8],
        options: FolderOptions,
    ) -> Result<(Vec<ExportFile>, Vec<String>), Error> {
        let hyper = model.hyper.ok_or_else(|| {
            Error::Source("the model's architecture is not known, so there is no `config.json` for it".to_owned())
        })?;
        let gguf = gguf_source::parsed(header)?;
        let divisors = rope_divisors(model)?;
        let dtype = options.dtype.unwrap_or(Dtype::Bf16);
        let made = to_hugging_face(&GgufModel { gguf: &gguf, hyper, dtype, rope_divisors: divisors.as_deref() });
        let made = made.map_err(|e| Error::format("GGUF header of the model", e))?;
        for tensor in model.tensors {
            let Some(table) = tensors::to_hugging_face(hyper, &tensor.name) else { continue };
            refuse_other_layout(tensor)?;
            self.add(tensor, target(tensor, options.dtype), &change(tensor, &table)?)?;
        }
        let file = |(name, bytes): (String, Vec<u8>)| ExportFile::new(&name, vec![Piece::Bytes(bytes)]);
        let mut files: Vec<ExportFile> = made.files.into_iter().map(file).collect::<Result<_, _>>()?;
        // Documents that came beside the file are the maker's own.
        let beside = documents::copied(model.layers)?;
        files.retain(|file| beside.iter().all(|other| other.name() != file.name()));
        files.extend(beside);
        Ok((files, made.losses))
    }

    /// A tensor as it is, or as floats of that type.
    fn add(&mut self, tensor: &StoredTensor, dtype: Option<Dtype>, change: &Change) -> Result<(), Error> {
        let changed = change.order != RowOrder::Stored || change.add != 0.0;
        let dtype = match tensor.encoding {
            Encoding::Plain(own) if changed => dtype.or(Some(own)),
            _ => dtype,
        };
        match dtype {
            Some(dtype) => {
                self.rounding.note(tensor, dtype);
                self.entries.push(plain(tensor, dtype, change)?);
            }
            None => {
                // Arrays that were tensors of their own go out under their own names.
                let single = tensor.parts.len() == 1;
                let name = |part: &StoredPart| if single { change.name.clone() } else { part.name.clone() };
                self.entries.extend(tensor.parts.iter().map(|part| stored(part, &name(part))));
            }
        }
        Ok(())
    }
}

/// The numbers of the tensor that stretches rotary frequencies, where the model has it.
fn rope_divisors(model: &StoredModel<'_>) -> Result<Option<Vec<f32>>, Error> {
    let Some(tensor) = model.tensors.iter().find(|tensor| tensor.name == "model.rope_freqs.weight") else {
        return Ok(None);
    };
    let mut divisors = Vec::new();
    TensorSource::of(tensor, &**model.open)?.pieces(RowOrder::Stored, &mut |piece| {
        let begin = divisors.len();
        divisors.resize(begin + piece.rows() * piece.columns(), 0.0);
        piece.decode(&mut divisors[begin..]);
        Ok(())
    })?;
    Ok(Some(divisors))
}

/// What a tensor is to become; `None` where it is copied.
fn target(tensor: &StoredTensor, wanted: Option<Dtype>) -> Option<Dtype> {
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
    } else if quantized && tensor.shape.len() > 2 && name.contains(".experts.") {
        "stacked experts"
    } else if quantized && tensor.parts.iter().any(|part| part.name.ends_with("_blocks")) {
        "experts whose float form lies the other way round"
    } else {
        return Ok(());
    };
    Err(Error::Source(format!("tensor `{name}`: {reason} cannot be expanded to Hugging Face's layout yet")))
}
