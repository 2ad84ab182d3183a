//! Files of a folder that hold no tensors. They are copied, except for statements that are true of
//! the stored encoding only.

use architectures::MODULES;
use formats::Dtype;
use manifests::{Layer, media_types};
use serde_json::{Map, Value};

use super::{ExportFile, FilePiece};
use import::{Error, OpenBlob};

const CONFIG: &str = "config.json";
/// Largest document that is read, in bytes.
const MAX_CONFIG: u64 = 64 << 20;
/// Keys of a config that describe the quantization of the weights.
const QUANTIZATION: [&str; 2] = ["quantization", "quantization_config"];

/// Returns the model's files without tensors, except for the config and the indexes of shards.
pub(super) fn copied(layers: &[Layer]) -> Result<Vec<ExportFile>, Error> {
    let types = [media_types::JSON, media_types::FILE, media_types::LICENSE, media_types::ADAPTER];
    let named = layers.iter().filter(|layer| types.contains(layer.media_type())).filter_map(|layer| {
        let name = layer.name().filter(|name| !name.is_empty())?;
        let kept = name != "config.json" && !name.ends_with(".safetensors.index.json");
        kept.then_some((name, layer))
    });
    named.map(|(name, layer)| whole(name, layer)).collect()
}

/// Returns a layer as one file.
pub(super) fn whole(name: &str, layer: &Layer) -> Result<ExportFile, Error> {
    let piece = FilePiece::Blob { blob: *layer.digest(), begin: 0, size: layer.size() };
    Ok(ExportFile::new(name, vec![piece])?.known_as(Some(*layer.digest())))
}

/// Returns the folders of the model's modules, if it has modules of sentence-transformers. Tensors
/// that were imported from these folders have their names as prefixes.
pub(super) fn module_folders(layers: &[Layer], open: &OpenBlob) -> Result<Vec<String>, Error> {
    let Some(raw) = read_json(MODULES, layers, open)? else { return Ok(Vec::new()) };
    Ok(architectures::module_folders(&raw))
}

/// Reads a JSON document of the model; `None` if it has none with that name.
fn read_json(name: &str, layers: &[Layer], open: &OpenBlob) -> Result<Option<Vec<u8>>, Error> {
    let Some(layer) = json_layer(name, layers) else { return Ok(None) };
    if layer.size() > MAX_CONFIG {
        let size = layer.size();
        return Err(Error::Source(format!("`{name}` has {size} bytes, at most {MAX_CONFIG} are read")));
    }
    let mut raw = vec![0; layer.size() as usize];
    let read = open(layer.digest()).and_then(|blob| blob.read_exact_at(&mut raw, 0));
    read.map_err(|e| Error::io("read blob", layer.digest(), e))?;
    Ok(Some(raw))
}

/// Reads the model's `config.json`; `None` if it has none.
pub(super) fn config(layers: &[Layer], open: &OpenBlob) -> Result<Option<Map<String, Value>>, Error> {
    let Some(raw) = read_json(CONFIG, layers, open)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&formats::json::tolerant(&raw));
    parsed.map(Some).map_err(|e| Error::Source(format!("the model's `config.json` is not a JSON object: {e}")))
}

/// Removes the description of the quantization from a config.
pub(super) fn without_quantization(config: &mut Map<String, Value>) {
    for key in QUANTIZATION {
        config.shift_remove(key);
    }
}

/// Writes the description of the quantization under both keys.
pub(super) fn with_quantization(config: &mut Map<String, Value>, quantization: &Value) {
    without_quantization(config);
    config.extend(QUANTIZATION.map(|key| (key.to_owned(), quantization.clone())));
}

/// Sets the type of floats, in configs that already state one.
pub(super) fn with_dtype(config: &mut Map<String, Value>, dtype: Dtype) {
    let name = match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        _ => "bfloat16",
    };
    for key in ["dtype", "torch_dtype"] {
        if let Some(value) = config.get_mut(key) {
            *value = Value::from(name);
        }
    }
}

fn json_layer<'a>(name: &str, layers: &'a [Layer]) -> Option<&'a Layer> {
    layers.iter().find(|layer| *layer.media_type() == media_types::JSON && layer.name() == Some(name))
}

/// Returns the config as a file: the stored layer if nothing changed, else the config with its keys
/// in their order.
pub(super) fn config_file(config: &Map<String, Value>, layers: &[Layer], open: &OpenBlob) -> Result<ExportFile, Error> {
    if let Some(layer) = json_layer(CONFIG, layers)
        && self::config(layers, open)?.as_ref() == Some(config)
    {
        return whole("config.json", layer);
    }
    let text = serde_json::to_string_pretty(config).map_err(|e| Error::Source(e.to_string()))?;
    ExportFile::new("config.json", vec![FilePiece::Bytes(format!("{text}\n").into_bytes())])
}

/// Returns a sentence for each layer of the model that no file of a folder can hold.
pub(super) fn losses(layers: &[Layer]) -> Vec<String> {
    let kinds = [
        (media_types::TEMPLATE, "the chat template that was given with the model"),
        (media_types::SYSTEM, "the system prompt"),
        (media_types::PARAMS, "the parameters of generation"),
        (media_types::MESSAGES, "the messages that precede every conversation"),
        (media_types::PROJECTOR, "the projector for pictures"),
    ];
    let has = |kind: &content::MediaType| layers.iter().any(|layer| layer.media_type() == kind);
    let lost = kinds.iter().filter(|(kind, _)| has(kind)).map(|(_, what)| format!("{what} is not in these files"));
    // In folders, an adapter's files are in a subfolder.
    let adapter = has(&media_types::ADAPTER).then(|| "the adapter is not merged into the weights".to_owned());
    lost.chain(adapter).collect()
}
