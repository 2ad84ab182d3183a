//! GPT-Neo: learned positions, unscaled attention, windows on every other layer.

use serde_json::Value;

use crate::blueprint::{Activation, Blueprint, NormKind, PositionTable, Positions, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, NormNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::without_gates_in;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gpt_neo",
    model_types: &["gpt_neo"],
    read_config,
    gguf: &GgufForm::not_yet("gpt_neo"),
    hugging_face: HuggingFaceForm::of("GPTNeoForCausalLM", "gpt_neo"),
};

const KEYS: &[(&str, &str)] =
    &[("num_attention_heads", "num_heads"), ("num_hidden_layers", "num_layers"), ("hidden_act", "activation_function")];
const DEFAULTS: Defaults = LLAMA;
pub(super) const NORMS: NormNames =
    NormNames { before_mixer: Some("ln_1"), after_mixer: None, before_ffn: Some("ln_2"), after_ffn: None };
const WINDOW: u64 = 256;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(KEYS);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-5),
        activation: config.activation("hidden_act", Activation::GeluTanh)?,
        attention_scale: 1.0,
        norms: NORMS,
        root: "transformer.",
        layer_list: "h",
        attention_modules: [
            "attn.attention.q_proj",
            "attn.attention.k_proj",
            "attn.attention.v_proj",
            "attn.attention.out_proj",
        ],
        final_norm: "ln_f",
        embedding: "wte.weight",
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.widen_by_four();
    let slides = sliding_layers(config, dense.layers.len())?;
    dense.slide(&slides, config.unsigned("window_size")?.unwrap_or(WINDOW));
    dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    let blueprint = dense.blueprint(names);
    Ok(with_positions(without_gates_in(blueprint, names, "transformer.h", ["mlp.c_fc", "mlp.c_proj"])))
}

/// Adds learned positions, one for each position of the context.
pub(super) fn with_positions(mut blueprint: Blueprint) -> Blueprint {
    let table = PositionTable::Learned(Tensor::named("transformer.wpe.weight"));
    blueprint.embedding.positions = Some(Positions { table, rows: blueprint.context, offset: 0 });
    blueprint
}

/// Returns for each layer whether it has a window: by `attention_layers`, or by `attention_types`,
/// a list of `[types, repetitions]`.
fn sliding_layers(config: Config<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let mut types: Vec<&Value> = Vec::new();
    let groups = config.list("attention_types")?.unwrap_or_default();
    if let Some(list) = config.list("attention_layers")? {
        types.extend(list);
    } else {
        for group in groups {
            let own = group.get(0).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let repetitions = group.get(1).and_then(Value::as_u64).unwrap_or(0).min(layers as u64);
            types.extend((0..repetitions).flat_map(|_| own).take((layers + 1).saturating_sub(types.len())));
        }
    }
    if types.len() != layers {
        return Err(fail(format!("`attention_types` describes {} layers, expected {layers}", types.len())));
    }
    let is_local = |kind: &Value| match kind.as_str() {
        Some("local") => Ok(true),
        Some("global") => Ok(false),
        _ => Err(fail(format!("`attention_types` has {kind}, expected global or local"))),
    };
    types.into_iter().map(is_local).collect()
}
