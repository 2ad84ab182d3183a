//! `OLMo` 2: norms after the parts of a layer only, norms of queries and keys over their full
//! width.

use crate::blueprint::{Blueprint, NormedPart};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, POST_NORMS};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, Rope, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "olmo2",
    model_types: &["olmo2"],
    read_config,
    gguf: &GgufForm {
        // The name by which Ollama publishes `OLMo` 3.
        also: &[Alias::of("olmo3")],
        read: Some(read_gguf),
        names: name_tables::POST_NORMS,
        ..GgufForm::not_yet("olmo2")
    },
    hugging_face: HuggingFaceForm::of("Olmo2ForCausalLM", "olmo2"),
};

const DEFAULTS: Defaults = LLAMA;
/// Every fourth layer has full attention, if some layers slide.
pub(super) const PATTERN: u64 = 4;

pub(super) fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_config(config, DEFAULTS)?;
    Ok(normed_over_the_width(Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..dense }, names))
}

/// Returns the blueprint with the norms of this family.
pub(super) fn normed_over_the_width(dense: Dense, names: &TensorNames) -> Blueprint {
    let mut blueprint = Dense { norms: POST_NORMS, head_norms: true, ..dense }.blueprint(names);
    for attention in blueprint.attentions_mut() {
        attention.normed = NormedPart::Width;
    }
    blueprint
}

/// Reads GGUF metadata. Files of `OLMo` 3 have this family's architecture name, with windows; their
/// sliding layers have unscaled `RoPE`.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_gguf(keys)?;
    dense.slide_by_keys(keys, PATTERN, 0)?;
    for layer in dense.layers.iter_mut().filter(|layer| layer.window.is_some()) {
        layer.rope = layer.rope.take().map(|rope| Rope { dimension: rope.dimension, ..Rope::plain(rope.theta) });
    }
    Ok(normed_over_the_width(dense, names))
}
