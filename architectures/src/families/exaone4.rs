//! EXAONE 4: norms after the parts of a layer, norms of heads. If there are sliding layers, only
//! those have `RoPE`.

use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, POST_NORMS};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::gguf_keys::all_but_every;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "exaone4",
    model_types: &["exaone4"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::POST_NORMS, ..GgufForm::not_yet("exaone4") },
    hugging_face: HuggingFaceForm::of("Exaone4ForCausalLM", "exaone4"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), ..LLAMA };
/// Every fourth layer has full attention.
const PATTERN: u64 = 4;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(dense(config)?.blueprint(names))
}

/// Reads the parameters of a config.
pub(super) fn dense(config: Config<'_>) -> Result<Dense, Error> {
    let mut dense = Dense {
        norms: POST_NORMS,
        head_norms: true,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    let window =
        if config.is_null("sliding_window") { None } else { Some(config.unsigned("sliding_window")?.unwrap_or(4096)) };
    if let Some(window) = window {
        let slides = sliding_layers(config, dense.layers.len() as u64)?;
        dense.slide(&slides, window);
        dense.rotate_sliding_layers_only();
    }
    Ok(dense)
}

/// Reads GGUF metadata. The window and the pattern of a file apply, because the model was trained
/// with them; llama.cpp ignores them unless the model has 64 layers.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(dense_of_gguf(keys)?.blueprint(names))
}

/// Reads the parameters of a GGUF file.
pub(super) fn dense_of_gguf(keys: Keys<'_>) -> Result<Dense, Error> {
    let mut dense = Dense { norms: POST_NORMS, head_norms: true, ..Dense::from_gguf(keys)? };
    dense.slide_by_keys(keys, PATTERN, 0)?;
    Ok(rotated_where_it_slides(dense))
}

/// If some layers slide, removes `RoPE` from layers with full attention.
fn rotated_where_it_slides(mut dense: Dense) -> Dense {
    if dense.layers.iter().any(|layer| layer.window.is_some()) {
        dense.rotate_sliding_layers_only();
    }
    dense
}

/// Returns for each layer whether it slides: by a list of types, by a pattern of letters (`L`
/// slides), or by the number `n` if every `n`-th layer does not slide.
fn sliding_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    if let Some(slides) = config.sliding_layers(layers)? {
        return Ok(slides);
    }
    if let Some(pattern) = config.text("sliding_window_pattern").filter(|pattern| !pattern.is_empty()) {
        return Ok(pattern.bytes().cycle().take(layers as usize).map(|letter| letter == b'L').collect());
    }
    Ok(all_but_every(config.step("sliding_window_pattern", PATTERN)?, layers))
}
