//! GPT-J: attention and network after one norm, interleaved `RoPE` on a part of each
//! head, networks without gates.

use crate::blueprint::{Activation, Blueprint, HeadLayout, NormKind};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, NormNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::without_gates_in;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gptj",
    model_types: &["gptj"],
    read_config,
    gguf: &GgufForm::not_yet("gptj"),
    hugging_face: HuggingFaceForm::of("GPTJForCausalLM", "gptj").interleaved(),
};

/// Keys of configs that follow GPT-2.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("intermediate_size", "n_inner"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("max_position_embeddings", "n_positions"),
    ("hidden_act", "activation_function"),
];
const DEFAULTS: Defaults = LLAMA;
/// Both parts of a layer read the output of this norm.
const NORM: Option<&str> = Some("ln_1");
const NORMS: NormNames = NormNames { before_mixer: NORM, after_mixer: None, before_ffn: NORM, after_ffn: None };
const ROTATED: u64 = 64;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    decoder(config, names)
}

/// Returns the decoder of a config, with separate projections of queries, keys and values.
pub(super) fn decoder(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(KEYS);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-5),
        activation: config.activation("hidden_act", Activation::GeluTanh)?,
        layout: HeadLayout::Interleaved,
        norms: NORMS,
        parallel: true,
        root: "transformer.",
        layer_list: "h",
        attention_modules: ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"],
        final_norm: "ln_f",
        embedding: "wte.weight",
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.widen_by_four();
    // `null` means the whole head.
    let default = Some(ROTATED).filter(|_| !config.is_null("rotary_dim"));
    let rotated = config.unsigned("rotary_dim")?.or(default);
    for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
        rope.dimension = rotated.filter(|rotated| *rotated != dense.head_dim);
    }
    Ok(without_gates_in(dense.blueprint(names), names, "transformer.h", ["mlp.fc_in", "mlp.fc_out"]))
}
