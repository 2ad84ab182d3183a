//! Parts of a `tokenizer.json` that differ between kinds of tokenizers.

use serde_json::{Map, Value as Json};

/// Parts that differ between kinds of tokenizers.
pub(super) struct Parts {
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) decoder: Json,
    /// Fields of the model, except for `vocab` and fields that all kinds share.
    pub(super) model: Map<String, Json>,
}
