//! Mellum 2: Qwen 3 with experts, windows on the layers that a config lists, and another `RoPE` on
//! them.

use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, Rope, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "mellum",
    model_types: &["mellum"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("mellum") },
    hugging_face: HuggingFaceForm::of("MellumForCausalLM", "mellum"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(128), context: 131_072, theta: THETA };
/// Base of the frequencies of layers with full attention, and of sliding layers.
const THETA: f64 = 500_000.0;
const SLIDING_THETA: f64 = 10_000.0;
const WINDOW: u64 = 1024;
/// Every fourth layer of a file without a list has full attention.
const PATTERN: u64 = 4;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { head_norms: true, ..Dense::from_config(config, DEFAULTS)? };
    let layers = dense.layers.len() as u64;
    let slides = config.sliding_layers(layers)?.unwrap_or_else(|| vec![false; layers as usize]);
    dense.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(WINDOW));
    let sliding = config.newer_rope("sliding_attention", SLIDING_THETA)?.unwrap_or_else(|| Rope::plain(SLIDING_THETA));
    dense.set_sliding_rope(&sliding);
    let sizes = ExpertSizes {
        count: experts::count(config, 64)?,
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(896),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(8),
        activation: dense.activation,
    };
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(true);
    let sparse = experts::after_dense_layers(config, dense.layers.len(), 0)?;
    let mut blueprint = dense.blueprint(names);
    ExpertLayers { sizes, sparse, module: "mlp", modules: MODULES, shared: None }.add(
        names,
        &mut blueprint,
        |router, _| router.normalize = normalize,
    );
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { head_norms: true, ..Dense::from_gguf(keys)? };
    dense.slide_by_keys(keys, PATTERN, 0)?;
    let theta = keys.rope()?.theta;
    dense.set_sliding_rope(&Rope::plain(keys.float("rope.freq_base_swa")?.unwrap_or(theta)));
    let mut blueprint = dense.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}
