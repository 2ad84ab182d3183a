//! `StableLM`: layer norms, `RoPE` on a quarter of each head, attention and feed-forward network beside each other where the config
//! says so.

use crate::blueprint::{Blueprint, NormKind};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, NormNames, ONE_NORM, PRE_NORMS};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::with_layer_norms;
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
        parallel,
        norms: norms(parallel),
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.rotate_part(config, 4)?;
    Ok(dense.blueprint(names))
}

/// Layers without a second norm have their parts beside each other.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    if names.has("model.layers.0.self_attn.q_norm.weight") {
        return Err(gguf_keys::fail("norms of single heads (`attn_q_norm`) cannot be run yet"));
    }
    let parallel = !names.has("model.layers.0.post_attention_layernorm.weight");
    let dense = Dense { parallel, norms: norms(parallel), ..with_layer_norms(keys)? };
    Ok(dense.blueprint(names))
}

fn norms(parallel: bool) -> NormNames {
    if parallel { ONE_NORM } else { PRE_NORMS }
}
