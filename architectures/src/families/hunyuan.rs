//! Hunyuan: a Llama with norms of heads after `RoPE`.

use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::{Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "hunyuan",
    model_types: &["hunyuan_v1_dense"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("hunyuan-dense") },
    hugging_face: HuggingFaceForm::of("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[("head_dim", "attention_head_dim")]);
    Ok(with_norms(dense(config)?, names))
}

/// Reads the parameters of a config.
pub(super) fn dense(config: Config<'_>) -> Result<Dense, Error> {
    let mut dense = Dense {
        head_norms: config.flag("use_qk_norm")?.unwrap_or(true),
        head_norm_modules: ["self_attn.query_layernorm", "self_attn.key_layernorm"],
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, LLAMA)?
    };
    let growth = base_growth(config, dense.head_dim)?;
    for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
        rope.theta *= growth;
    }
    Ok(dense)
}

/// Returns the factor of the base of the frequencies: the alpha of "dynamic" scaling, which applies
/// to all lengths here.
fn base_growth(config: Config<'_>, head_dim: u64) -> Result<f64, Error> {
    let Some(scaling) = config.object("rope_parameters")?.or(config.object("rope_scaling")?) else { return Ok(1.0) };
    let kind = scaling.text("rope_type").or(scaling.text("type"));
    let alpha = scaling.float("alpha")?.filter(|alpha| *alpha > 0.0 && kind == Some("dynamic"));
    let elements = head_dim as f64;
    Ok(alpha.map_or(1.0, |alpha| alpha.powf(elements / (elements - 2.0))))
}

/// Reads GGUF metadata. The converter includes the growth in the base.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { head_norms: names.has("model.layers.0.self_attn.q_norm.weight"), ..Dense::from_gguf(keys)? };
    Ok(with_norms(dense, names))
}

/// Returns the blueprint, in which norms follow `RoPE`.
pub(super) fn with_norms(dense: Dense, names: &TensorNames) -> Blueprint {
    let mut blueprint = dense.blueprint(names);
    blueprint.attentions_mut().for_each(|attention| attention.norms_follow_rope = true);
    blueprint
}
