//! Fields that may be `null`: many clients send `null` for an absent field, and Ollama accepts it.

use serde::{Deserialize, Deserializer};

/// Reads a field; `null` gives the default value.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
