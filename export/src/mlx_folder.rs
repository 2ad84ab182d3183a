//! MLX folder of a model: the reverse of importing one. No number is changed.
//!
//! A quantized weight consists of `<base>.weight`, `<base>.scales` and, for affine types,
//! `<base>.biases`. The config describes the quantization under two keys, with an entry for each
//! layer that differs from the most common parameters.

use std::collections::BTreeMap;

use formats::dtype::element_count;
use formats::encoding::Role;
use formats::{Dtype, Encoding};
use serde_json::{Map, Value, json};

use super::array::{ArrayEntry, stored};
use super::shards::{Label, shards};
use super::{ExportPlan, StoredModel, documents, gguf_source};
use import::{Error, StoredTensor};

/// Plans the MLX folder of a model whose weights are floats or in encodings of MLX.
///
/// # Errors
/// [`Error::Source`] if a weight has another encoding, the model has no config, or it was imported
/// from GGUF.
pub fn mlx_plan(model: &StoredModel<'_>, shard_size: u64) -> Result<ExportPlan, Error> {
    // A GGUF model has another order of rows, and its norms may differ by a constant: the values
    // would not be MLX's.
    if gguf_source::headers(model.layers, &**model.open)?.is_some() {
        return Err(Error::Source(
            "the model came as a GGUF file, whose weights lie otherwise than MLX's; export it by `--format safetensors` \
             and import that"
                .to_owned(),
        ));
    }
    let Some(mut config) = documents::config(model.layers, &**model.open)? else {
        return Err(Error::Source(
            "the model has no `config.json`, which the folder needs; export it as safetensors first".to_owned(),
        ));
    };
    let mut entries = Vec::new();
    for tensor in model.tensors {
        entries.extend(arrays(tensor)?);
    }
    // A config that MLX wrote stays unchanged, unless the weights were quantized again since.
    if !says_the_same(&config, model.tensors) {
        documents::without_quantization(&mut config);
        if let Some(quantization) = quantization(model.tensors) {
            documents::with_quantization(&mut config, &quantization);
        }
    }
    let counts = model.tensors.iter().filter_map(|tensor| element_count(&tensor.shape));
    let parameters = Some(counts.fold(0, u64::saturating_add));
    let modules = documents::module_folders(model.layers, &**model.open)?;
    let label = Label { format: "mlx", always_indexed: true, parameters };
    let mut files = shards(entries, &modules, shard_size, label)?;
    files.push(documents::config_file(&config, model.layers, &**model.open)?);
    files.extend(documents::copied(model.layers)?);
    ExportPlan::new(files, documents::losses(model.layers))
}

/// Returns the arrays of a tensor under MLX's names.
fn arrays(tensor: &StoredTensor) -> Result<Vec<ArrayEntry>, Error> {
    let name = tensor.folder_name();
    let refused = |reason: String| Error::Source(format!("tensor `{name}`: {reason}"));
    match tensor.encoding {
        Encoding::Plain(_) => Ok(tensor.parts.iter().map(|part| stored(part, name)).collect()),
        Encoding::Affine { .. } | Encoding::Micro(_) => {
            let base = name.strip_suffix(".weight");
            let base = base.ok_or_else(|| refused("MLX expects a name that ends in `.weight`".to_owned()))?;
            let entry = |part: &import::StoredPart| match part.role {
                Role::Weight if part.dtype == Dtype::U32 => Ok(stored(part, name)),
                Role::Weight => Err(refused(format!("MLX keeps codes as U32, these are {}", part.dtype))),
                Role::Scale => Ok(stored(part, &format!("{base}.scales"))),
                Role::Bias => Ok(stored(part, &format!("{base}.biases"))),
                Role::GlobalScale => Err(refused("MLX has no scale for the whole tensor".to_owned())),
            };
            tensor.parts.iter().map(entry).collect()
        }
        other => Err(refused(format!(
            "MLX does not know {other}; export the model as safetensors, or quantize it anew by `lode create`"
        ))),
    }
}

/// Returns the quantization entry of the config; `None` if no weight is quantized.
fn quantization(tensors: &[StoredTensor]) -> Option<Value> {
    let mut counts: BTreeMap<Parameters, u64> = BTreeMap::new();
    for parameters in tensors.iter().filter_map(|tensor| Parameters::of(tensor.encoding)) {
        *counts.entry(parameters).or_default() += 1;
    }
    let (common, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let mut all = common.object();
    for tensor in tensors {
        let Some(base) = tensor.folder_name().strip_suffix(".weight") else { continue };
        match Parameters::of(tensor.encoding) {
            Some(own) if own == common => {}
            Some(own) => drop(all.insert(base.to_owned(), Value::Object(own.object()))),
            // Vectors such as norms are never quantized. Other weights that are not quantized are
            // marked with `false`.
            None if tensor.shape.len() > 1 => drop(all.insert(base.to_owned(), json!(false))),
            None => {}
        }
    }
    Some(Value::Object(all))
}

/// True if the config already describes the quantization of every weight, and nothing else.
fn says_the_same(config: &Map<String, Value>, tensors: &[StoredTensor]) -> bool {
    let Some(Value::Object(says)) = config.get("quantization") else { return false };
    if config.get("quantization_config").is_some_and(|other| other.as_object() != Some(says)) {
        return false;
    }
    let any = tensors.iter().any(|tensor| Parameters::of(tensor.encoding).is_some());
    any && tensors.iter().all(|tensor| {
        let name = tensor.folder_name();
        let base = name.strip_suffix(".weight").unwrap_or(name);
        match (Parameters::of(tensor.encoding), says.get(base)) {
            (Some(own), None | Some(Value::Bool(true))) => own.are_said_by(says),
            (Some(own), Some(Value::Object(entry))) => own.are_said_by(entry),
            (Some(_), Some(_)) => false,
            // MLX takes a weight without scales for a plain one, unless the config has an entry for
            // it.
            (None, entry) => matches!(entry, None | Some(Value::Bool(false))),
        }
    })
}

/// Quantization parameters of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Parameters {
    group: u32,
    bits: u8,
    mode: &'static str,
}

impl Parameters {
    fn of(encoding: Encoding) -> Option<Self> {
        match encoding {
            Encoding::Affine { bits, group } => Some(Self { group, bits, mode: "affine" }),
            Encoding::Micro(micro) => Some(Self { group: micro.group(), bits: micro.bits(), mode: micro.name() }),
            _ => None,
        }
    }

    /// True if an entry of a config has these parameters; missing keys have MLX's defaults.
    fn are_said_by(self, entry: &Map<String, Value>) -> bool {
        let default = if self.mode == "affine" { (64, 4) } else { (u64::from(self.group), u64::from(self.bits)) };
        let number = |key: &str, default: u64| entry.get(key).map_or(Some(default), Value::as_u64);
        entry.get("mode").map_or(Some("affine"), Value::as_str) == Some(self.mode)
            && number("group_size", default.0) == Some(u64::from(self.group))
            && number("bits", default.1) == Some(u64::from(self.bits))
    }

    fn object(self) -> Map<String, Value> {
        Map::from_iter([
            ("group_size".to_owned(), json!(self.group)),
            ("bits".to_owned(), json!(self.bits)),
            ("mode".to_owned(), json!(self.mode)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use formats::encoding::Micro;

    use super::*;

    fn tensor(name: &str, encoding: Encoding) -> StoredTensor {
        StoredTensor {
            name: name.to_owned(),
            stored_name: name.to_owned(),
            encoding,
            shape: vec![64, 64],
            parts: Vec::new(),
        }
    }

    #[test]
    fn knows_a_config_that_is_out_of_date() {
        let (four, eight) = (Encoding::Affine { bits: 4, group: 64 }, Encoding::Affine { bits: 8, group: 64 });
        let tensors = |second| {
            [tensor("a.weight", four), tensor("b.weight", second), tensor("norm", Encoding::Plain(Dtype::Bf16))]
        };
        let plain = Encoding::Plain(Dtype::Bf16);
        for (config, second, same) in [
            (json!({"quantization": {"group_size": 64, "bits": 4}}), four, true),
            (json!({"quantization": {}}), four, true),
            (json!({"quantization": {"group_size": 64, "bits": 4}}), eight, false),
            (json!({"quantization": {"group_size": 32, "bits": 4}}), four, false),
            (json!({"quantization": {"bits": 4, "mode": "nvfp4"}}), four, false),
            (json!({"quantization": {"bits": 4, "b": {"bits": 8, "group_size": 64}}}), eight, true),
            (json!({"quantization": {"bits": 4, "b": {"bits": 8, "group_size": 64}}}), four, false),
            (json!({"quantization": {"bits": 4, "b": {"bits": 8, "group_size": 64}}}), plain, false),
            (json!({"quantization": {"bits": 4, "b": false}}), plain, true),
            (json!({"quantization": {"bits": 4, "b": false}}), four, false),
            (json!({"quantization": {"bits": 4}}), plain, true),
            (json!({"quantization": {"bits": 4}, "quantization_config": {"bits": 8}}), four, false),
            (json!({"quantization_config": {"bits": 4}}), four, false),
            (json!({"quantization": 4}), four, false),
        ] {
            let Value::Object(object) = &config else { panic!("an object") };
            assert_eq!(says_the_same(object, &tensors(second)), same, "{config} and {second}");
        }
        let config = Map::from_iter([("quantization".to_owned(), json!({"bits": 4}))]);
        assert!(!says_the_same(&config, &[tensor("a.weight", plain)]), "nothing is quantized any more");
    }

    #[test]
    fn says_what_differs_from_the_most_common() {
        let four = Encoding::Affine { bits: 4, group: 64 };
        let tensors = [
            tensor("a.weight", four),
            tensor("b.weight", Encoding::Affine { bits: 8, group: 32 }),
            tensor("c.weight", four),
            tensor("d.weight", Encoding::Plain(Dtype::Bf16)),
            tensor("e.weight", Encoding::Micro(Micro::Mxfp8)),
        ];
        let expect = json!({"group_size": 64, "bits": 4, "mode": "affine",
            "b": {"group_size": 32, "bits": 8, "mode": "affine"}, "d": false,
            "e": {"group_size": 32, "bits": 8, "mode": "mxfp8"}});
        assert_eq!(quantization(&tensors), Some(expect));
        assert_eq!(quantization(&tensors[3..4]), None);
    }
}
