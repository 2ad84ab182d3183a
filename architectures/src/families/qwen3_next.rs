//! Qwen3-Next: gated delta nets, gated attention in every fourth layer, experts with a shared one.

use crate::blueprint::{
    AttentionGate, Blueprint, DeltaInput, DeltaNet, GateFunction, HeadPairing, Mixer, Norm, Projection, RouterScores,
    Rows, Tensor,
};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, decay_rate, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::gguf_keys::all_but_every;
use crate::{Error, TensorNames, experts};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_next",
    model_types: &["qwen3_next"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_qkv", "linear_attn.in_proj_qkv"),
            ("attn_gate", "linear_attn.in_proj_z"),
            ("ssm_in", "linear_attn.in_proj_qkvz"),
            ("ssm_ba", "linear_attn.in_proj_ba"),
            ("ssm_a", "linear_attn.A"),
            ("ssm_dt.bias", "linear_attn.dt_bias"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
        ],
        ..GgufForm::not_yet("qwen3next")
    },
    hugging_face: HuggingFaceForm::of("Qwen3NextForCausalLM", "qwen3_next"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(256), context: 32_768, theta: 10_000.0 };
const EXPERTS: experts::Defaults =
    experts::Defaults { count: 512, width: 512, top_k: 10, normalize: true, shared_width: Some(512) };
/// Every fourth layer has attention.
const INTERVAL: u64 = 4;

/// Parameters of the delta nets. Sizes are in elements.
#[derive(Clone, Copy)]
pub(super) struct DeltaNetSizes {
    key_heads: u64,
    value_heads: u64,
    key_dim: u64,
    value_dim: u64,
    /// Kernel size of the convolution, in positions.
    kernel: u64,
    /// Key head of each value head.
    pairing: HeadPairing,
}

impl DeltaNetSizes {
    pub(super) fn from_config(config: Config<'_>) -> Result<Self, Error> {
        let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
        Ok(Self {
            key_heads: number("linear_num_key_heads", 16)?,
            value_heads: number("linear_num_value_heads", 32)?,
            key_dim: number("linear_key_head_dim", 128)?,
            value_dim: number("linear_value_head_dim", 128)?,
            kernel: number("linear_conv_kernel_dim", 4)?,
            pairing: HeadPairing::Grouped,
        })
    }

    pub(super) fn from_gguf(keys: Keys<'_>, pairing: HeadPairing) -> Result<Self, Error> {
        let value_heads = keys.required("ssm.time_step_rank")?;
        Ok(Self {
            key_heads: keys.required("ssm.group_count")?,
            value_heads,
            key_dim: keys.required("ssm.state_size")?,
            value_dim: keys.required("ssm.inner_size")?.checked_div(value_heads).unwrap_or(0),
            kernel: keys.required("ssm.conv_kernel")?,
            pairing,
        })
    }
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.norm_offset = norm_offset(config, names);
    dense.rotate_part(config, 4)?;
    let sizes = DeltaNetSizes::from_config(config)?;
    let attends = attention_layers(config, dense.layers.len() as u64)?;
    let mut blueprint = mixed(dense, names, &attends, sizes);
    experts::from_config(config, names, &mut blueprint, &EXPERTS)?;
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constant: weights of the selected experts are divided by
/// their sum.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_gguf(keys)?;
    let attends = attention_layers_of_gguf(keys, dense.layers.len())?;
    let mut blueprint = mixed(dense, names, &attends, DeltaNetSizes::from_gguf(keys, HeadPairing::Grouped)?);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}

/// Returns the constant that is added to the weights of norms. In MLX's models, the weights already
/// include the 1.
pub(super) fn norm_offset(config: Config<'_>, names: &TensorNames) -> f64 {
    let is_mlx = config.value("quantization").is_some() || experts::switched(names, "model.layers.0.mlp").is_some();
    if is_mlx { 0.0 } else { 1.0 }
}

/// Returns for each layer of a GGUF file whether it has attention.
pub(super) fn attention_layers_of_gguf(keys: Keys<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let recurs = if let Some(recurs) = keys.layers_with("attention.recurrent_layers", layers)? {
        recurs
    } else {
        let step = keys.unsigned("full_attention_interval")?.filter(|step| *step > 0);
        all_but_every(step.unwrap_or(INTERVAL), layers as u64)
    };
    Ok(recurs.into_iter().map(|recurs| !recurs).collect())
}

/// Returns the blueprint with the mixers of this family.
pub(super) fn mixed(dense: Dense, names: &TensorNames, attends: &[bool], sizes: DeltaNetSizes) -> Blueprint {
    let (head_dim, epsilon) = (dense.head_dim, dense.norm_epsilon);
    let mut blueprint = Dense { head_norms: true, ..dense }.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("model.layers.{index}");
        if !attends[index] {
            let net = delta_net(names, &format!("{prefix}.linear_attn"), sizes, epsilon);
            layer.mixer = Mixer::DeltaNet(Box::new(net));
        } else if let Mixer::Attention(attention) = &mut layer.mixer {
            // Each head has the rows of the query first, then the rows of the gate.
            let count = attention.heads.saturating_mul(head_dim);
            let part = |first| Rows { first, count, block: head_dim, stride: head_dim.saturating_mul(2) };
            attention.gate = Some(AttentionGate::sigmoid(attention.query.rows(part(head_dim))));
            attention.query = attention.query.rows(part(0));
        }
    }
    blueprint
}

fn delta_net(names: &TensorNames, module: &str, sizes: DeltaNetSizes, epsilon: f64) -> DeltaNet {
    let DeltaNetSizes { key_heads, value_heads, key_dim, value_dim, kernel, pairing } = sizes;
    let share = value_heads.checked_div(key_heads).unwrap_or(0);
    let own = |name: &str| projection(names, &format!("{module}.{name}"));
    let [query, key, value, gate] = inputs(names, module, sizes);
    let both = own("in_proj_ba");
    let [beta, decay] = if names.has(&both.weight.name) {
        // The rows of beta and decay of each key head are contiguous.
        [0, share]
            .map(|first| both.rows(Rows { first, count: value_heads, block: share, stride: share.saturating_mul(2) }))
    } else {
        ["in_proj_b", "in_proj_a"].map(own)
    };
    DeltaNet {
        key_heads,
        value_heads,
        pairing,
        key_dim,
        value_dim,
        query,
        key,
        value,
        gate: DeltaInput::Plain(Box::new(gate)),
        gate_function: GateFunction::Silu,
        beta,
        beta_scale: 1.0,
        decay: DeltaInput::Plain(Box::new(decay)),
        decays_by_row: false,
        decay_bias: Tensor::named(format!("{module}.dt_bias")),
        decay_rate: decay_rate(names, module),
        kernel,
        convolution: vec![Tensor::named(format!("{module}.conv1d.weight"))],
        norm: Norm {
            kind: crate::NormKind::Rms,
            weight: Some(Tensor::named(format!("{module}.norm.weight"))),
            bias: None,
            epsilon,
            offset: 0.0,
        },
        output: own("out_proj"),
    }
}

/// Returns query, key, value and gate. In folders and the first GGUF files, the rows are stored per
/// key head. Later GGUF files have all queries, then all keys, then all values, with the gates in a
/// separate tensor.
fn inputs(names: &TensorNames, module: &str, sizes: DeltaNetSizes) -> [Projection; 4] {
    let DeltaNetSizes { key_heads, value_heads, key_dim, value_dim, .. } = sizes;
    let own = |name: &str| projection(names, &format!("{module}.{name}"));
    let apart = own("in_proj_qkv");
    if names.has(&apart.weight.name) {
        let (keys, values) = (key_heads.saturating_mul(key_dim), value_heads.saturating_mul(value_dim));
        let part = |first: u64, count: u64| apart.rows(Rows::run(first, count));
        return [part(0, keys), part(keys, keys), part(keys.saturating_mul(2), values), own("in_proj_z")];
    }
    let values = value_heads.checked_div(key_heads).unwrap_or(0).saturating_mul(value_dim);
    let all = own("in_proj_qkvz");
    let stride = key_dim.saturating_add(values).saturating_mul(2);
    let part = |first: u64, block: u64| all.rows(Rows { first, count: key_heads.saturating_mul(block), block, stride });
    let first_value = key_dim.saturating_mul(2);
    [
        part(0, key_dim),
        part(key_dim, key_dim),
        part(first_value, values),
        part(first_value.saturating_add(values), values),
    ]
}

/// Returns for each layer whether it has attention: by a list of types, or by a step.
pub(super) fn attention_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    let step = config.step("full_attention_interval", INTERVAL)?;
    if let Some(others) = config.layers_of_type("linear_attention", layers)? {
        return Ok(others.into_iter().map(|other| !other).collect());
    }
    Ok(all_but_every(step, layers).into_iter().map(|other| !other).collect())
}
