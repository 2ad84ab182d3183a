//! Kimi Linear: delta nets whose rows decay separately, latent attention without positions in a few
//! layers, experts with sigmoid scores.

use serde_json::Value;

use super::deepseek_v2;
use crate::RopeScaling;
use crate::blueprint::{
    Blueprint, DeltaInput, DeltaNet, GateFunction, HeadLayout, HeadPairing, LowRankInput, Mixer, Norm,
};
use crate::blueprint::{Ffn, NormKind, RouterScores, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::{Dense, decay_rate, layer_norm, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES, SigmoidRouter, gated};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "kimi_linear",
    model_types: &["kimi_linear"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
            ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
            ("attn_k_b", "self_attn.k_b_proj"),
            ("attn_v_b", "self_attn.v_b_proj"),
            ("ssm_a", "self_attn.A"),
            ("ssm_beta", "self_attn.b_proj"),
            ("ssm_dt.bias", "self_attn.dt_bias"),
            ("ssm_f_a", "self_attn.f_a_proj"),
            ("ssm_f_b", "self_attn.f_b_proj"),
            ("ssm_g_a", "self_attn.g_a_proj"),
            ("ssm_g_b", "self_attn.g_b_proj"),
            ("ssm_conv1d_q", "self_attn.q_conv1d"),
            ("ssm_conv1d_k", "self_attn.k_conv1d"),
            ("ssm_conv1d_v", "self_attn.v_conv1d"),
            ("ssm_norm", "self_attn.o_norm"),
        ],
        ..GgufForm::not_yet("kimi-linear")
    },
    hugging_face: HuggingFaceForm::of("KimiLinearForCausalLM", "kimi_linear"),
};

/// Usual keys, and those of published configs.
const KEYS: &[(&str, &str)] = &[
    ("max_position_embeddings", "model_max_length"),
    ("norm_topk_prob", "moe_renormalize"),
    ("n_group", "num_expert_group"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
];
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("max_position_embeddings", 1_048_576.0), ("rms_norm_eps", 1e-5)];
const EXPERTS: &str = "block_sparse_moe";

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(KEYS).with_defaults(OF_CLASS);
    if config.flag("mla_use_nope")? == Some(false) {
        return Err(fail("`mla_use_nope` is false, which cannot be run yet for this family"));
    }
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let mut blueprint = deepseek_v2::latent_attention(config, names, HeadLayout::Half)?;
    let layers = blueprint.layers.len();
    let linear = config.object("linear_attn_config")?;
    let of_linear = |key: &str, own: &str, default: u64| match linear {
        Some(linear) => Ok::<_, Error>(linear.unsigned(own)?.unwrap_or(default)),
        None => number(key, default),
    };
    let (heads, head_dim) =
        (of_linear("linear_num_heads", "num_heads", 32)?, of_linear("linear_head_dim", "head_dim", 128)?);
    let kernel = of_linear("linear_conv_kernel_dim", "short_conv_kernel_size", 4)?;
    with_delta_nets(&mut blueprint, names, &attention_layers(config, linear, layers)?, [heads, head_dim, kernel]);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        if let Ffn::Gated(own) = &mut layer.ffn {
            let module = format!("model.layers.{index}.{EXPERTS}");
            if names.has(&format!("{module}.gate_proj.weight")) {
                **own = gated(names, &module, MODULES, own.width, own.activation);
            }
        }
    }
    let width = number("moe_intermediate_size", 1024)?;
    let sizes = ExpertSizes {
        count: experts::count(config, 256)?,
        width,
        top_k: number("num_experts_per_tok", 8)?,
        activation: config.activation("hidden_act", crate::Activation::Silu)?,
    };
    let shared = number("n_shared_experts", 1)?;
    let layers = ExpertLayers {
        sizes,
        sparse: experts::regular_layers(config, layers, 1)?,
        module: EXPERTS,
        modules: ["w1", "w3", "w2"],
        shared: (shared > 0).then(|| ("shared_experts", width.saturating_mul(shared))),
    };
    let rule = SigmoidRouter::from_config(config, true, 2.446)?;
    layers.add(names, &mut blueprint, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    });
    Ok(blueprint)
}

/// Reads GGUF metadata. Layers without key heads are delta nets.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_gguf(keys)?;
    let (heads, layers) = (dense.heads, dense.layers.len());
    let value_dim = keys.required("attention.value_length_mla")?;
    let mut blueprint = deepseek_v2::latent_of_gguf(keys, names, dense, HeadLayout::Half, value_dim)?;
    let attends = keys.layers_with("attention.head_count_kv", layers)?.unwrap_or_else(|| vec![true; layers]);
    let sizes = [heads, keys.required("kda.head_dim")?, keys.required("ssm.conv_kernel")?];
    with_delta_nets(&mut blueprint, names, &attends, sizes);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    Ok(blueprint)
}

/// Sets the mixers: delta nets with `[heads, head_dim, kernel]`, and latent attention without
/// positions.
fn with_delta_nets(blueprint: &mut Blueprint, names: &TensorNames, attends: &[bool], sizes: [u64; 3]) {
    let epsilon = blueprint.epsilon();
    for (index, (layer, attends)) in blueprint.layers.iter_mut().zip(attends).enumerate() {
        if !attends {
            let net = delta_net(names, &format!("model.layers.{index}.self_attn"), sizes, epsilon);
            layer.mixer = Mixer::DeltaNet(Box::new(net));
        } else if let Mixer::Latent(latent) = &mut layer.mixer {
            latent.rope.scaling = RopeScaling::Proportional { share: 0.0, factor: 1.0 };
        }
    }
}

/// Returns for each layer whether it has attention: by a list of types, or by the list of published
/// configs, which counts from 1; or else every fourth layer from the fifth on.
fn attention_layers(config: Config<'_>, linear: Option<Config<'_>>, layers: usize) -> Result<Vec<bool>, Error> {
    if let Some(others) = config.layers_of_type("linear_attention", layers as u64)? {
        return Ok(others.into_iter().map(|other| !other).collect());
    }
    let listed = linear.map(|linear| linear.list("full_attn_layers")).transpose()?.flatten();
    let Some(listed) = listed else { return Ok((0..layers).map(|layer| layer > 0 && layer % 4 == 0).collect()) };
    let has = |list: &[Value], layer: u64| list.iter().any(|item| item.as_u64() == Some(layer));
    let attends: Vec<bool> = (1..=layers as u64).map(|layer| has(listed, layer)).collect();
    // Published configs list the other layers too.
    let others = linear.map(|linear| linear.list("kda_layers")).transpose()?.flatten();
    let differs = |others: &[Value]| (1..).zip(&attends).any(|(layer, attends)| has(others, layer) == *attends);
    if others.is_some_and(differs) {
        return Err(fail("`full_attn_layers` and `kda_layers` do not have each layer in exactly one of them"));
    }
    Ok(attends)
}

fn delta_net(names: &TensorNames, module: &str, [heads, head_dim, kernel]: [u64; 3], epsilon: f64) -> DeltaNet {
    let own = |name: &str| projection(names, &format!("{module}.{name}"));
    let tensor = |name: &str| Tensor::named(format!("{module}.{name}"));
    let low_rank = |down: &str, up: &str| {
        DeltaInput::LowRank(Box::new(LowRankInput { rank: head_dim, down: own(down), up: own(up) }))
    };
    DeltaNet {
        key_heads: heads,
        value_heads: heads,
        pairing: HeadPairing::Grouped,
        key_dim: head_dim,
        value_dim: head_dim,
        query: own("q_proj"),
        key: own("k_proj"),
        value: own("v_proj"),
        gate: low_rank("g_a_proj", "g_b_proj"),
        gate_function: GateFunction::Sigmoid,
        beta: own("b_proj"),
        beta_scale: 1.0,
        decay: low_rank("f_a_proj", "f_b_proj"),
        decays_by_row: true,
        decay_bias: tensor("dt_bias"),
        decay_rate: decay_rate(names, module),
        kernel,
        convolution: ["q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"].map(tensor).to_vec(),
        norm: Norm { kind: NormKind::Rms, ..layer_norm(names, &format!("{module}.o_norm"), epsilon) },
        output: own("o_proj"),
    }
}
