//! `OLMo` Hybrid: gated delta nets with norms before the parts of a layer, and attention with norms
//! after them in every fourth layer.

use super::olmo2;
use super::qwen3_next;
use crate::blueprint::{Blueprint, DeltaInput, DeltaNet, GateFunction, HeadPairing, Mixer, Norm, NormKind};
use crate::blueprint::{Residual, Tensor};
use crate::config_json::Config;
use crate::config_json::share;
use crate::dense::{Defaults, Dense, LLAMA, decay_rate, layer_norm, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "olmo_hybrid",
    model_types: &["olmo_hybrid"],
    read_config,
    gguf: &GgufForm::not_yet("olmo_hybrid"),
    hugging_face: HuggingFaceForm::of("OlmoHybridForCausalLM", "olmo_hybrid"),
};

/// Epsilon of the norm of a delta net's output; transformers does not use the config's epsilon for
/// it.
const EPSILON: f64 = 1e-5;

const DEFAULTS: Defaults = Defaults { context: 65_536, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    if !has_positions(config)? {
        dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    }
    let mut attends = qwen3_next::attention_layers(config, dense.layers.len() as u64)?;
    if !attends.contains(&true) && config.value("layer_types").is_none() {
        // The class gives attention to the last layer of a model without any.
        attends.pop();
        attends.push(true);
    }
    let key_heads = number("linear_num_key_heads", dense.heads)?;
    let by_width = share(dense.hidden, 0.75).checked_div(key_heads).unwrap_or(0);
    let key_dim = number("linear_key_head_dim", by_width)?;
    let sizes = HybridNetSizes {
        key_heads,
        value_heads: number("linear_num_value_heads", dense.heads)?,
        key_dim,
        value_dim: number("linear_value_head_dim", key_dim.saturating_mul(2))?,
        kernel: number("linear_conv_kernel_dim", 4)?,
        beta_scale: if config.flag("linear_allow_neg_eigval")?.unwrap_or(true) { 2.0 } else { 1.0 },
    };
    let epsilon = dense.norm_epsilon;
    let norm = |index: usize, names_of_norm: [&str; 2]| {
        let [usual, other] = names_of_norm.map(|name| format!("model.layers.{index}.{name}"));
        let module = if names.has(&format!("{usual}.weight")) { usual } else { other };
        Norm { kind: NormKind::Rms, ..layer_norm(names, &module, epsilon) }
    };
    let mut blueprint = olmo2::normed_over_the_width(dense, names);
    for (index, (layer, attends)) in blueprint.layers.iter_mut().zip(attends).enumerate() {
        // transformers renames two norms when it saves a model.
        let second = norm(index, ["post_attention_layernorm", "feedforward_layer_norm"]);
        if attends {
            layer.mixer_residual.after = Some(second);
        } else {
            let net = sizes.mixer(names, &format!("model.layers.{index}.linear_attn"));
            layer.mixer = Mixer::DeltaNet(Box::new(net));
            let first = norm(index, ["input_layernorm", "attention_layer_norm"]);
            layer.mixer_residual = Residual { before: Some(first), ..Residual::default() };
            layer.ffn_residual = Residual { before: Some(second), ..Residual::default() };
        }
    }
    Ok(blueprint)
}

/// True unless the base of `RoPE` is `null`, as in published configs.
fn has_positions(config: Config<'_>) -> Result<bool, Error> {
    let newer = config.object("rope_parameters")?;
    if newer.is_some_and(|rope| rope.is_null("rope_theta")) {
        return Ok(false);
    }
    Ok(newer.is_some_and(|rope| rope.value("rope_theta").is_some()) || !config.is_null("rope_theta"))
}

/// Parameters of the delta nets. Sizes are in elements.
#[derive(Clone, Copy)]
struct HybridNetSizes {
    key_heads: u64,
    value_heads: u64,
    key_dim: u64,
    value_dim: u64,
    /// Kernel size of the convolutions, in positions.
    kernel: u64,
    beta_scale: f64,
}

impl HybridNetSizes {
    /// Returns the delta net below a module.
    fn mixer(self, names: &TensorNames, module: &str) -> DeltaNet {
        let Self { key_heads, value_heads, key_dim, value_dim, kernel, beta_scale } = self;
        let own = |name: &str| projection(names, &format!("{module}.{name}"));
        let tensor = |name: &str| Tensor::named(format!("{module}.{name}"));
        DeltaNet {
            key_heads,
            value_heads,
            pairing: HeadPairing::Grouped,
            key_dim,
            value_dim,
            query: own("q_proj"),
            key: own("k_proj"),
            value: own("v_proj"),
            gate: DeltaInput::Plain(Box::new(own("g_proj"))),
            gate_function: GateFunction::Silu,
            beta: own("b_proj"),
            beta_scale,
            decay: DeltaInput::Plain(Box::new(own("a_proj"))),
            decays_by_row: false,
            decay_bias: tensor("dt_bias"),
            decay_rate: decay_rate(names, module),
            kernel,
            convolution: ["q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"].map(tensor).to_vec(),
            norm: Norm { kind: NormKind::Rms, ..layer_norm(names, &format!("{module}.o_norm"), EPSILON) },
            output: own("o_proj"),
        }
    }
}
