//! Facts in a model's source besides its architecture: the scalar metadata of a GGUF file, and the
//! recommended sampling parameters.
//!
//! Sampling parameters of a GGUF file are the keys `general.sampling.*`, as llama.cpp's converter
//! writes them. Those of a folder are in `generation_config.json`, unless it disables sampling
//! (`do_sample`).

use formats::Gguf;
use formats::gguf::{Value as Raw, file_type_name};
use manifests::media_types;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::layout::{Layout, classify};
use crate::model::Model;

/// Maximum bytes of a text that is cached; longer texts are omitted.
const LONGEST: usize = 4096;
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
const SAMPLING: &str = "general.sampling.";

/// Names of options: ours, `generation_config.json`'s, and GGUF's after [`SAMPLING`].
const OPTIONS: [(&str, &str, &str); 6] = [
    ("temperature", "temperature", "temp"),
    ("top_k", "top_k", "top_k"),
    ("top_p", "top_p", "top_p"),
    ("min_p", "min_p", "min_p"),
    ("typical_p", "typical_p", "typ_p"),
    ("repeat_penalty", "repetition_penalty", "penalty_repeat"),
];

/// Facts in a model's source besides its architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct General {
    /// Metadata of a GGUF file, without lists.
    pub metadata: Map<String, Value>,
    /// Recommended sampling parameters, by the names of our options.
    pub sampling: Map<String, Value>,
    /// Name of the document with the sampling parameters.
    pub sampling_source: String,
}

/// Reads the facts of a GGUF file.
pub(crate) fn of_gguf(gguf: &Gguf<'_>) -> General {
    let single = |(key, value): &(&str, Raw<'_>)| {
        let is_short = !matches!(value, Raw::Array(_)) && value.as_bytes().is_none_or(|text| text.len() <= LONGEST);
        is_short.then(|| ((*key).to_owned(), json(value)))
    };
    let said = |key: &str| Some(json(gguf.get(&format!("{SAMPLING}{key}"))?)).filter(Value::is_number);
    let sampling = OPTIONS.iter().filter_map(|(own, _, key)| Some(((*own).to_owned(), said(key)?))).collect();
    General::new(gguf.metadata.iter().filter_map(single).collect(), sampling, "the GGUF file")
}

/// Reads the facts of a `generation_config.json`.
pub(crate) fn of_folder(config: &Map<String, Value>) -> General {
    let samples = config.get("do_sample").and_then(Value::as_bool) != Some(false);
    let said = |key: &str| config.get(key).filter(|value| samples && value.is_number()).cloned();
    let sampling = OPTIONS.iter().filter_map(|(own, key, _)| Some(((*own).to_owned(), said(key)?))).collect();
    General::new(Map::new(), sampling, GENERATION_CONFIG)
}

impl General {
    /// Returns the GGUF file's name of its quantization.
    fn file_type(&self) -> Option<&'static str> {
        file_type_name(self.metadata.get("general.file_type")?.as_u64()?)
    }

    /// Returns the quantization of a model, for display: the name in its GGUF file if the stored
    /// tensors are those of the file, else a name derived from the tensors.
    pub fn quantization(&self, model: &Model) -> String {
        let as_it_came = model.manifest.layers_of(media_types::ORIGIN).next().is_some()
            || matches!(classify(&model.manifest), Layout::Files(_));
        let said = self.file_type().filter(|_| as_it_came);
        said.map_or_else(|| model.config.file_type.clone(), str::to_owned)
    }

    fn new(metadata: Map<String, Value>, sampling: Map<String, Value>, source: &str) -> Self {
        let sampling_source = if sampling.is_empty() { String::new() } else { source.to_owned() };
        Self { metadata, sampling, sampling_source }
    }
}

/// Converts a value to JSON; numbers that JSON cannot represent become null.
pub(crate) fn json(value: &Raw<'_>) -> Value {
    match value {
        Raw::Bool(flag) => (*flag).into(),
        Raw::String(text) => String::from_utf8_lossy(text).into(),
        Raw::Array(list) => list.iter().map(|item| json(&item)).collect(),
        // Keeps the shortest decimal form of the `f32`, not the longer one of the converted `f64`.
        Raw::F32(number) => number.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        Raw::F64(number) => (*number).into(),
        Raw::I8(number) => (*number).into(),
        Raw::I16(number) => (*number).into(),
        Raw::I32(number) => (*number).into(),
        Raw::I64(number) => (*number).into(),
        other => other.as_u64().map_or(Value::Null, Value::from),
    }
}

#[cfg(test)]
mod tests {
    use formats::gguf::{OwnedValue, write_header};
    use serde_json::json;

    use super::*;

    #[test]
    fn sampling_is_found_in_either_form() {
        let config = json!({"temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.05, "eos_token_id": 2, "do_sample": true});
        let found = of_folder(config.as_object().expect("an object"));
        assert_eq!(Value::from(found.sampling), json!({"temperature": 0.6, "top_p": 0.95, "repeat_penalty": 1.05}));
        assert_eq!(found.sampling_source, GENERATION_CONFIG);
        let greedy = json!({"temperature": 0.6, "do_sample": false});
        assert_eq!(of_folder(greedy.as_object().expect("an object")), General::default());
        let metadata = [
            ("general.architecture", OwnedValue::from("llama")),
            ("general.sampling.temp", 0.7f32.into()),
            ("general.sampling.top_k", 20u32.into()),
            ("tokenizer.ggml.tokens", OwnedValue::texts(["a", "b"])),
        ];
        let metadata: Vec<_> = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let header = write_header(&metadata, &[]).expect("a header").bytes;
        let found = of_gguf(&Gguf::parse_header(&header).expect("a header"));
        assert_eq!(Value::from(found.sampling), json!({"temperature": 0.7, "top_k": 20}));
        assert_eq!(found.metadata["general.architecture"], "llama");
        assert!(!found.metadata.contains_key("tokenizer.ggml.tokens"), "lists are long");
    }
}
