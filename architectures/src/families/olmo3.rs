//! `OLMo` 3: `OLMo` 2 with windows, and scaled `RoPE` on the layers without one. Its GGUF files
//! have the architecture name of `OLMo` 2.

use super::olmo2::{PATTERN, normed_over_the_width};
use crate::Rope;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "olmo3",
    model_types: &["olmo3"],
    read_config,
    gguf: &GgufForm::not_yet("olmo2"),
    hugging_face: HuggingFaceForm::of("Olmo3ForCausalLM", "olmo3"),
};

const DEFAULTS: Defaults = Defaults { theta: 500_000.0, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    dense.slide_by_config(config, PATTERN, 4096)?;
    let theta = dense.layers.iter().find_map(|layer| layer.rope.as_ref()).map_or(DEFAULTS.theta, |rope| rope.theta);
    // Parameters that are not assigned to a layer type apply to layers without a window.
    let own = config.newer_rope("sliding_attention", theta)?.filter(|_| config.has_rope_of("sliding_attention"));
    dense.set_sliding_rope(&own.unwrap_or_else(|| Rope::plain(theta)));
    Ok(normed_over_the_width(dense, names))
}
