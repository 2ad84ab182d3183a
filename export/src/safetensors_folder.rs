//! A Hugging Face folder of any model whose numbers can be read.

use std::sync::Arc;

use architectures::{Architecture, Divisors};
use formats::dtype::element_count;
use formats::{Dtype, Encoding};
use manifests::Layer;
use serde_json::{Map, Value};

use super::array::{Change, Entry, plain, stored};
use super::head_order::change;
use super::rounding::Rounding;
use super::shards::{Label, shards};
use super::{ExportFile, ExportPlan, GgufModel, Piece, documents, folder_documents, gguf_source};
use import::{Error, OpenBlob, RowOrder, StoredPart, StoredTensor, TensorSource};

/// The most numbers that stretch rotary frequencies: of heads that are larger than any there are.
const MAX_DIVISORS: u64 = 4096;

/// A model in a store.
#[derive(Clone, Copy)]
pub struct StoredModel<'a> {
    /// What the model is called, without host and tag.
    pub name: &'a str,
    /// What it computes, where that is known.
    pub architecture: Option<&'a Architecture>,
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
        for tensor in model.tensors {
            refuse_other_layout(tensor)?;
            self.add(tensor, target(tensor, options.dtype), &Change::none(tensor.folder_name()))?;
        }
        adapt(&mut config, model.tensors, options.dtype);
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
        let architecture = model.architecture.ok_or_else(|| {
            Error::Source("the model's architecture is not known, so there is no `config.json` for it".to_owned())
        })?;
        let gguf = gguf_source::parsed(header)?;
        let divisors = rope_divisors(model, architecture)?;
        let dtype = most_common(model.tensors, options.dtype).unwrap_or(Dtype::Bf16);
        let made =
            folder_documents(&GgufModel { gguf: &gguf, architecture, dtype, rope_divisors: divisors.as_deref() })?;
        for tensor in model.tensors {
            let Some(table) = architecture.tensor_to_hugging_face(&tensor.name) else { continue };
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
        if let Some(dtype) = dtype {
            self.rounding.note(tensor, dtype);
            self.entries.push(plain(tensor, dtype, change)?);
        } else {
            // Arrays that were tensors of their own go out under their own names.
            let single = tensor.parts.len() == 1;
            let name = |part: &StoredPart| if single { change.name.clone() } else { part.name.clone() };
            self.entries.extend(tensor.parts.iter().map(|part| stored(part, &name(part))));
        }
        Ok(())
    }
}

/// The numbers of the tensor that stretches rotary frequencies, where the model has it. There is one for each pair of a
/// head at most.
fn rope_divisors(model: &StoredModel<'_>, architecture: &Architecture) -> Result<Option<Vec<f32>>, Error> {
    let mut attentions = architecture.blueprint.attentions();
    let divided = attentions.find_map(|attention| match attention.rope.as_ref()?.divisors.as_ref()? {
        Divisors::Same(tensor) => Some((tensor, attention.head_dim)),
        Divisors::ByContext { .. } => None,
    });
    let Some((divisors, head_dim)) = divided else { return Ok(None) };
    let Some(tensor) = model.tensors.iter().find(|tensor| tensor.name == divisors.name) else { return Ok(None) };
    let most = (head_dim / 2).min(MAX_DIVISORS);
    let few = element_count(&tensor.shape).is_some_and(|count| count <= most);
    if !few || !is_float(tensor.encoding) {
        return Err(Error::Source(format!(
            "tensor `{}` is {} of shape {:?}, expected at most {most} floats: one for each pair of a head",
            tensor.name, tensor.encoding, tensor.shape
        )));
    }
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
        plain if is_float(plain) => wanted,
        // Whole numbers and truth values are no weights.
        Encoding::Plain(_) => None,
        _ => Some(wanted.unwrap_or(Dtype::Bf16)),
    }
}

fn is_float(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Plain(Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64))
}

/// The type that most numbers of the folder will have, of those that a config can name; `None` where none has.
fn most_common(tensors: &[StoredTensor], wanted: Option<Dtype>) -> Option<Dtype> {
    let becomes = |tensor: &StoredTensor| match tensor.encoding {
        Encoding::Plain(own) => target(tensor, wanted).unwrap_or(own),
        _ => wanted.unwrap_or(Dtype::Bf16),
    };
    let count = |dtype: Dtype| -> u64 {
        let tensors = tensors.iter().filter(|tensor| becomes(tensor) == dtype);
        tensors.filter_map(|tensor| element_count(&tensor.shape)).fold(0, u64::saturating_add)
    };
    let counts = [Dtype::F32, Dtype::F16, Dtype::Bf16].map(|dtype| (dtype, count(dtype)));
    counts.into_iter().filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count).map(|(dtype, _)| dtype)
}

/// Makes a config say what the folder has. Where no number changes it stays what it is.
fn adapt(config: &mut Map<String, Value>, tensors: &[StoredTensor], wanted: Option<Dtype>) {
    let expanded = tensors.iter().any(|tensor| !matches!(tensor.encoding, Encoding::Plain(_)));
    if expanded {
        documents::without_quantization(config);
    }
    if (expanded || wanted.is_some())
        && let Some(dtype) = most_common(tensors, wanted)
    {
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

#[cfg(test)]
mod tests {
    use architectures::{Document, TensorNames, describe};
    use serde_json::json;

    use super::*;

    fn tensor(encoding: Encoding, size: u64) -> StoredTensor {
        let name = "model.rope_freqs.weight".to_owned();
        StoredTensor { stored_name: name.clone(), name, encoding, shape: vec![size], parts: Vec::new() }
    }

    #[test]
    fn a_config_names_the_type_of_most_numbers() {
        let (half, full) = (Encoding::Plain(Dtype::F16), Encoding::Plain(Dtype::F32));
        let four = Encoding::Affine { bits: 4, group: 64 };
        for (tensors, wanted, says) in [
            (vec![tensor(half, 9), tensor(full, 1), tensor(full, 1)], None, "theirs"),
            (vec![tensor(half, 9), tensor(full, 1), tensor(four, 4)], None, "float16"),
            (vec![tensor(half, 9), tensor(full, 1), tensor(four, 64)], None, "bfloat16"),
            (vec![tensor(half, 9), tensor(four, 64)], Some(Dtype::F32), "float32"),
            (vec![tensor(Encoding::Plain(Dtype::I64), 9)], Some(Dtype::F32), "theirs"),
        ] {
            let mut config = Map::from_iter([("torch_dtype".to_owned(), json!("theirs"))]);
            adapt(&mut config, &tensors, wanted);
            assert_eq!(config["torch_dtype"], says, "{tensors:?}");
        }
    }

    #[test]
    fn rope_divisors_are_few_floats() {
        let config = br#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":4,
            "intermediate_size":64,"vocab_size":64}"#;
        let names = TensorNames::from_iter(["model.rope_freqs.weight".to_owned()]);
        let architecture = describe(Document::Config(config), &names).expect("a config");
        let open: Arc<OpenBlob> = Arc::new(|_: &content::Digest| Err(std::io::ErrorKind::NotFound.into()));
        for refused in [
            tensor(Encoding::Plain(Dtype::F32), 9),
            tensor(Encoding::Plain(Dtype::F32), u64::MAX),
            tensor(Encoding::Plain(Dtype::F6_E2M3), 4),
        ] {
            let tensors = [refused];
            let model = StoredModel {
                name: "m",
                architecture: Some(&architecture),
                tensors: &tensors,
                layers: &[],
                open: &open,
            };
            let error = rope_divisors(&model, &architecture).expect_err("no divisors");
            assert!(error.to_string().contains("at most 8 floats"), "{error}");
        }
    }
}
