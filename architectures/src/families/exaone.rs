//! EXAONE 3 and 3.5: a Llama with its own names.

use super::llama;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, NormNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "exaone",
    model_types: &["exaone"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("exaone")
    },
    hugging_face: HuggingFaceForm::of("ExaoneForCausalLM", "exaone"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: None, context: 4096, theta: 500_000.0 };
const NORMS: NormNames =
    NormNames { before_mixer: Some("ln_1"), after_mixer: None, before_ffn: Some("ln_2"), after_ffn: None };

/// Reads a config. Published configs have other keys than the configs that transformers writes.
fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[
        ("num_hidden_layers", "num_layers"),
        ("hidden_act", "activation_function"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ]);
    let dense = Dense {
        norms: NORMS,
        root: "transformer.",
        layer_list: "h",
        attention_modules: [
            "attn.attention.q_proj",
            "attn.attention.k_proj",
            "attn.attention.v_proj",
            "attn.attention.out_proj",
        ],
        network_modules: ["mlp.c_fc_0", "mlp.c_fc_1", "mlp.c_proj"],
        final_norm: "ln_f",
        embedding: "wte.weight",
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    Ok(dense.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Dense::from_gguf(keys)?.blueprint(names))
}
