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
    if let Some(number) = model.kind.and_then(GgmlType::file_type) {
        keys.push(("general.file_type".to_owned(), number.into()));
    }
    Ok(keys)
}
