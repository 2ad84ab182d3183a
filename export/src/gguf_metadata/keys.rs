//! General keys of the model, and keys of its architecture's numbers.

use formats::GgmlType;
use formats::gguf::OwnedValue;
use import::Error;

use super::HuggingFaceModel;
use crate::refused;

type MetadataKey = (String, OwnedValue);

/// Returns the general keys and the keys of the architecture.
///
/// # Errors
/// GGUF cannot express a number for the architecture, or a number does not fit its type.
pub(super) fn keys(model: &HuggingFaceModel<'_>) -> Result<Vec<MetadataKey>, Error> {
    let general = |key: &str, text: &str| (format!("general.{key}"), OwnedValue::from(text));
    let architecture = model.architecture.family.gguf.architecture;
    let mut keys = vec![general("architecture", architecture), general("type", "model"), general("name", model.name)];
    keys.extend(model.architecture.gguf_keys().map_err(|e| refused(model.name, e))?);
    if let Some(number) = model.kind.and_then(file_type) {
        keys.push(("general.file_type".to_owned(), number.into()));
    }
    Ok(keys)
}

/// Returns the value of `general.file_type` for files whose tensors mostly have this type;
/// `enum llama_ftype` in llama.cpp's `llama.h`.
pub(crate) fn file_type(kind: GgmlType) -> Option<u32> {
    Some(match kind {
        GgmlType::F32 => 0,
        GgmlType::F16 => 1,
        GgmlType::Q4_0 => 2,
        GgmlType::Q4_1 => 3,
        GgmlType::Q8_0 => 7,
        GgmlType::Q5_0 => 8,
        GgmlType::Q5_1 => 9,
        GgmlType::Q2_K => 10,
        GgmlType::Q3_K => 12,
        GgmlType::Q4_K => 15,
        GgmlType::Q5_K => 17,
        GgmlType::Q6_K => 18,
        GgmlType::IQ4_NL => 25,
        GgmlType::IQ4_XS => 30,
        GgmlType::BF16 => 32,
        _ => return None,
    })
}
