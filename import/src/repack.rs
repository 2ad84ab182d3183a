//! Presents models of GPTQ, AWQ, compressed-tensors and bitsandbytes as if MLX had quantized them:
//! the same numbers, in groups with a scale and a bias.
//!
//! Arrays of a module `X` by method:
//!
//! - GPTQ in 2, 4 or 8 bits: `X.qweight`, `X.scales`, `X.qzeros`, `X.g_idx`.
//! - AWQ in 4 bits: the same without `X.g_idx`, with codes packed along the outputs.
//! - compressed-tensors, `pack-quantized`: `X.weight_packed` I32, `X.weight_scale`,
//!   `X.weight_shape`, `X.weight_zero_point`.
//! - compressed-tensors, `int-quantized`: `X.weight` I8, `X.weight_scale`, `X.weight_zero_point`.
//! - compressed-tensors, `nvfp4-pack-quantized`: `X.weight_packed` U8, `X.weight_scale`,
//!   `X.weight_global_scale`.
//! - bitsandbytes in 8 bits: `X.weight` I8, `X.SCB`.
//!
//! A number is `scale · (code − zero)`, which equals `scale · code + bias` with
//! `bias = −scale · zero`. This is exact if scale and bias are F32. It is also exact in the
//! source's own type if the zero is the middle code, a power of two. The values of codes do not
//! change, only their order. A [`Shard`] replaces each file: it computes its bytes while they are
//! read, some rows at a time, so an import sees an ordinary file.
//!
//! Sources: the `qlinear` modules of `AutoGPTQ` and `AutoAWQ`, compressed-tensors'
//! `pack_quantized.py`, and bitsandbytes' `int8_vectorwise_dequant`.

mod find;
mod matrix;
mod packed;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{Error, NamedFile, QuantizationConfig, SourceFile, SourceTensor};
use find::Module;
use shard::Shard;

/// Version of the conversion, stored in the model's config. Increase it when the result changes.
const VERSION: u32 = 1;

/// Files besides `config.json` in which `AutoGPTQ` and `AutoAWQ` store their settings.
pub(crate) const CONFIGS_OF_METHODS: [&str; 2] = ["quantize_config.json", "quant_config.json"];

/// Files of a model whose weights were converted.
pub(crate) struct Repacked {
    /// Files that replace the source's files, in the same order.
    pub(crate) files: Vec<RepackedFile>,
    /// New quantization settings of the config.
    pub(crate) quantization: Value,
    /// Summary for messages.
    pub(crate) summary: String,
}

/// File that replaces a file of the source.
pub(crate) struct RepackedFile {
    pub(crate) named: NamedFile,
    /// Header, including the length before it; `None` if the source's own file is used.
    pub(crate) header: Option<Vec<u8>>,
}

/// Returns the files in MLX's form; `None` if none of these methods quantized a weight.
///
/// # Errors
/// One of the methods quantized a weight in a form that groups with scales and biases cannot
/// express.
pub(crate) fn repacked(
    files: &[SourceFile],
    tensors: &[SourceTensor],
    config: &QuantizationConfig,
) -> Result<Option<Repacked>, Error> {
    let modules = find::modules(files, tensors, config)?;
    let Some(first) = modules.first() else { return Ok(None) };
    let method = config.method().unwrap_or(first.method);
    let is_changed = |file: usize| {
        let mut changed = modules.iter().flat_map(|module| module.parts.iter().chain([&module.codes]));
        changed.any(|at| tensors[*at].file == file)
    };
    let file = |(number, file): (usize, &SourceFile)| {
        let named = |source| NamedFile { name: file.name.clone(), source };
        if !is_changed(number) {
            return RepackedFile { named: named(Arc::clone(&file.source)), header: None };
        }
        let shard = Shard::new(number, files, tensors, &modules);
        let header = Some(shard.header().to_vec());
        RepackedFile { named: named(Arc::new(shard)), header }
    };
    let shards = files.iter().enumerate().map(file).collect();
    let summary = format!("its {} weights quantized by {method} are stored as {}", modules.len(), kinds(&modules));
    Ok(Some(Repacked { files: shards, quantization: quantization(&modules, method, config.block_size()), summary }))
}

/// Returns the config with its quantization settings replaced.
pub(crate) fn config(raw: &[u8], quantization: &Value) -> Result<Vec<u8>, Error> {
    let malformed = |e: serde_json::Error| Error::Source(format!("`config.json` cannot be read: {e}"));
    let mut config: Map<String, Value> = serde_json::from_slice(&formats::json::tolerant(raw)).map_err(malformed)?;
    config.remove("quantization_config");
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        text.remove("quantization_config");
    }
    config.insert("quantization".to_owned(), quantization.clone());
    serde_json::to_vec_pretty(&config).map_err(malformed)
}

/// Returns MLX's `quantization` settings for these modules: the first module's form as the default,
/// and an entry for each module with another form. The FP8 block size is kept, because other
/// modules of the model may be stored in such blocks.
fn quantization(modules: &[Module], method: &str, fp8_block: Option<(u32, u32)>) -> Value {
    let form = |module: &Module| module.affine().map(|packed| json!({"bits": packed.bits, "group_size": packed.group}));
    let common = modules.iter().find_map(form);
    let mut says: Map<String, Value> = common.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
    says.insert("converted_from".to_owned(), json!({"quant_method": method, "version": VERSION}));
    if let Some((rows, columns)) = fp8_block {
        says.insert("weight_block_size".to_owned(), json!([rows, columns]));
    }
    for module in modules {
        if let Some(own) = form(module).filter(|own| Some(own) != common.as_ref()) {
            says.insert(module.name.clone(), own);
        }
    }
    Value::Object(says)
}

/// Returns the resulting forms of the modules, each once.
fn kinds(modules: &[Module]) -> String {
    let mut kinds: Vec<String> = modules
        .iter()
        .map(|module| match module.affine() {
            Some(packed) => format!("int{} in groups of {}", packed.bits, packed.group),
            None => "nvfp4".to_owned(),
        })
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(" and ")
}
