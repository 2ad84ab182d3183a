//! `null` where a field may be left out: many clients send it, and Ollama reads it as nothing.

use serde::{Deserialize, Deserializer};

/// Reads a field that may be `null`.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
