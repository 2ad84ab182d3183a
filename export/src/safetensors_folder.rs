//! Hugging Face folder of any model whose numbers can be decoded.

use std::sync::Arc;

use architectures::{Architecture, Divisors};
use formats::dtype::element_count;
use formats::{Dtype, Encoding};
use manifests::Layer;
use serde_json::{Map, Value};

use super::array::{ArrayEntry, Change, plain, stored};
use super::head_order::change;
use super::rounding::Rounding;
use super::shards::{Label, shards};
use super::{ExportFile, ExportPlan, FilePiece, GgufModel, NO_TOWER, documents, folder_documents, gguf_source};
use import::{Error, OpenBlob, RowOrder, StoredPart, StoredTensor, TensorSource};

/// Largest number of `RoPE` divisors; enough for heads that are larger than in any known model.
const MAX_DIVISORS: u64 = 4096;

/// Model in a store.
#[derive(Clone, Copy)]
pub struct StoredModel<'a> {
    /// Name of the model, without host and tag.
    pub name: &'a str,
    /// Architecture of the model, if known.
    pub architecture: Option<&'a Architecture>,
    /// All tensors.
    pub tensors: &'a [StoredTensor],
    /// All layers.
    pub layers: &'a [Layer],
    /// Function that opens blobs of the model.
    pub open: &'a Arc<OpenBlob>,
}

/// Options of a folder.
#[derive(Clone, Copy, Debug)]
pub struct FolderOptions {
    /// Target type of all floats: F32, F16 or BF16. If `None`, floats are unchanged and quantized
    /// weights become BF16.
    pub dtype: Option<Dtype>,
    /// Largest number of tensor bytes in one file.
    pub shard_size: u64,
}

/// Plans the folder of any model. A model that was imported from GGUF gets the names, the order of
/// rows and the documents of a Hugging Face folder.
///
/// # Errors
/// [`Error::Source`] if there is no config and none can be made, or a folder cannot hold a tensor.
pub fn safetensors_plan(model: &StoredModel<'_>, options: FolderOptions) -> Result<ExportPlan, Error> {
    let mut folder = Folder::default();
    let (mut files, mut losses) = match gguf_source::headers(model.layers, &**model.open)? {
        Some(headers) => folder.of_gguf(model, &headers, options)?,
        None => (folder.of_folder(model, options)?, Vec::new()),
    };
    losses.extend(folder.rounding.losses());
    losses.extend(documents::losses(model.layers));
    let label = Label { format: "pt", always_indexed: false, parameters: None };
    let modules = documents::module_folders(model.layers, &**model.open)?;
    let mut all = shards(folder.entries, &modules, options.shard_size, label)?;
    all.append(&mut files);
    ExportPlan::new(all, losses)
}

/// Tensors of a folder under construction.
#[derive(Default)]
struct Folder {
    entries: Vec<ArrayEntry>,
    rounding: Rounding,
}

impl Folder {
    /// Converts a folder to a folder: all names stay.
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

    /// Converts a GGUF model to a folder. Returns the files and the losses.
    fn of_gguf(
        &mut self,
        model: &StoredModel<'_>,
        headers: &gguf_source::Headers,
        options: FolderOptions,
    ) -> Result<(Vec<ExportFile>, Vec<String>), Error> {
        let architecture = model.architecture.ok_or_else(|| {
            Error::Source("the model's architecture is not known, so there is no `config.json` for it".to_owned())
        })?;
        let gguf = gguf_source::parsed(&headers.model)?;
        let of_projector = gguf_source::tensor_names(headers.projector.as_deref())?;
        let divisors = rope_divisors(model, architecture)?;
        let dtype = most_common(model.tensors, options.dtype).unwrap_or(Dtype::Bf16);
        let mut made =
            folder_documents(&GgufModel { gguf: &gguf, architecture, dtype, rope_divisors: divisors.as_deref() })?;
        if !of_projector.is_empty() {
            made.losses.push(NO_TOWER.to_owned());
        }
        for tensor in model.tensors.iter().filter(|tensor| !of_projector.contains(&tensor.stored_name)) {
            let Some(table) = architecture.tensor_to_hugging_face(&tensor.name) else { continue };
            refuse_other_layout(tensor)?;
            self.add(tensor, target(tensor, options.dtype), &change(tensor, &table)?)?;
        }
        let file = |(name, bytes): (String, Vec<u8>)| ExportFile::new(&name, vec![FilePiece::Bytes(bytes)]);
        let mut files: Vec<ExportFile> = made.files.into_iter().map(file).collect::<Result<_, _>>()?;
        // Documents that were imported together with the file come from its publisher and take
        // precedence.
        let beside = documents::copied(model.layers)?;
        files.retain(|file| beside.iter().all(|other| other.name() != file.name()));
        files.extend(beside);
        Ok((files, made.losses))
    }

    /// Adds a tensor, unchanged or as floats of type `dtype`.
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
            // Arrays that were separate tensors in the source keep their names.
            let single = tensor.parts.len() == 1;
            let name = |part: &StoredPart| if single { change.name.clone() } else { part.name.clone() };
            self.entries.extend(tensor.parts.iter().map(|part| stored(part, &name(part))));
        }
        Ok(())
    }
}

/// Reads the divisors of rotary frequencies, if the model has that tensor. It has at most one
/// number for each pair of a head.
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

/// Returns the type to which a tensor is converted; `None` if it is copied.
fn target(tensor: &StoredTensor, wanted: Option<Dtype>) -> Option<Dtype> {
    match tensor.encoding {
        plain if is_float(plain) => wanted,
        // Integers and booleans are not weights.
        Encoding::Plain(_) => None,
        _ => Some(wanted.unwrap_or(Dtype::Bf16)),
    }
}

fn is_float(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Plain(Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64))
}

/// Returns the type that most numbers of the folder will have, among the types that a config can
/// name; `None` if none of them occurs.
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

/// Updates a config to describe the exported tensors. It is unchanged if no number changes.
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

/// Refuses tensors whose layout was changed by quantization: decoding their numbers would not
/// restore the original layout.
fn refuse_other_layout(tensor: &StoredTensor) -> Result<(), Error> {
    let name = &tensor.name;
    let quantized = !matches!(tensor.encoding, Encoding::Plain(_));
    let reason = if quantized && name.contains(".switch_mlp.") {
        "experts that MLX has stacked"
    } else if quantized && tensor.shape.len() > 2 && name.contains(".experts.") {
        "stacked experts"
    } else if quantized && tensor.parts.iter().any(|part| part.name.ends_with("_blocks")) {
        "experts whose float form is stored transposed"
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
