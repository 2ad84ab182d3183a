//! `StableLM`: layer norms, `RoPE` on a quarter of each head. Attention and feed-forward network
//! are parallel if the config requires it.

use crate::blueprint::{Blueprint, NormKind, NormedPart};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, NormNames, ONE_NORM, PRE_NORMS};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::with_layer_norms;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "stablelm",
    model_types: &["stablelm"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("stablelm") },
    hugging_face: HuggingFaceForm::of("StableLmForCausalLM", "stablelm"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), context: 4096, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let head_norms = config.flag("qk_layernorm")?.unwrap_or(false);
    let parallel = config.flag("use_parallel_residual")?.unwrap_or(false);
    let mut dense = Dense {
        parallel,
        head_norms,
        norms: norms(parallel),
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.rotate_part(config, 4)?;
    Ok(with_norms_of_heads(dense.blueprint(names)))
}

/// Sets norms of queries and keys with separate weights for each head: one tensor per head in
/// folders, one for all heads in GGUF files.
fn with_norms_of_heads(mut blueprint: Blueprint) -> Blueprint {
    for attention in blueprint.attentions_mut() {
        attention.normed = NormedPart::EachHead;
        for norm in [&mut attention.query_norm, &mut attention.key_norm].into_iter().flatten() {
            if let Some(weight) = &mut norm.weight {
                weight.name = weight.name.replace("_norm.weight", "_layernorm.norms.{}.weight");
            }
        }
    }
    blueprint
}

/// Reads GGUF metadata. Layers without a second norm are parallel.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let head_norms = names.has("model.layers.0.self_attn.q_norm.weight");
    let parallel = !names.has("model.layers.0.post_attention_layernorm.weight");
    let dense = Dense { parallel, head_norms, norms: norms(parallel), ..with_layer_norms(keys)? };
    let mut blueprint = dense.blueprint(names);
    for attention in blueprint.attentions_mut() {
        attention.normed = NormedPart::EachHead;
    }
    Ok(blueprint)
}

fn norms(parallel: bool) -> NormNames {
    if parallel { ONE_NORM } else { PRE_NORMS }
}
