//! `StableLM`: layer norms, `RoPE` on a quarter of each head, attention and feed-forward network beside each other where the config
//! says so.

use crate::blueprint::{Blueprint, NormKind};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, ONE_NORM, PRE_NORMS};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, gguf_keys, names};

pub(super) const FAMILY: Family = Family {
    name: "stablelm",
    model_types: &["stablelm"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: names::PRE_NORMS, ..GgufForm::not_yet("stablelm") },
    hugging_face: HuggingFaceForm::of("StableLmForCausalLM", "stablelm"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), context: 4096, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    if config.flag("qk_layernorm")?.unwrap_or(false) {
        return Err(fail("`qk_layernorm` is set: norms of single heads cannot be run yet"));
    }
    let parallel = config.flag("use_parallel_residual")?.unwrap_or(false);
    let mut dense = Dense {
        norms: if parallel { ONE_NORM } else { PRE_NORMS },
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    if !config.says_rotated()? {
        let quarter = dense.head_dim / 4;
        for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
            rope.dimension = Some(quarter);
        }
    }
    let mut blueprint = dense.blueprint(names);
    for layer in &mut blueprint.layers {
        layer.parallel = parallel;
    }
    Ok(blueprint)
}

/// Layers without a second norm have their parts beside each other.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let parallel = !names.has("model.layers.0.post_attention_layernorm.weight");
    if names.has("model.layers.0.self_attn.q_norm.weight") {
        return Err(gguf_keys::fail("norms of single heads cannot be run yet"));
    }
    let dense = Dense {
        norms: if parallel { ONE_NORM } else { PRE_NORMS },
        norm_kind: NormKind::Layer,
        norm_epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        ..Dense::from_gguf(keys)?
    };
    let mut blueprint = dense.blueprint(names);
    for layer in &mut blueprint.layers {
        layer.parallel = parallel;
    }
    Ok(blueprint)
}
