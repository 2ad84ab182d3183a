//! Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers of one part each: a state space model,
//! attention without positions, a network with a squared activation, or experts.

use crate::blueprint::{
    Activation, Blueprint, ExpertLatent, Experts, Ffn, Layer, Matrices, Mixer, Network, Plain, Residual, SharedExpert,
};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, layer_count, projection};
use crate::experts::{SigmoidRouter, router};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::state_space::StateSpaceSizes;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "nemotron_h",
    model_types: &["nemotron_h"],
    read_config,
    gguf: &GGUF,
    hugging_face: HuggingFaceForm::of("NemotronHForCausalLM", "nemotron_h"),
};
const GGUF: GgufForm = GgufForm {
    // The text part of models that see and hear has another name.
    also: &[Alias::of("nemotron_h_moe"), Alias::of("nemotron_h_omni")],
    read: Some(read_gguf),
    names: &[
        ("attn_norm", "norm"),
        ("attn_q", "mixer.q_proj"),
        ("attn_k", "mixer.k_proj"),
        ("attn_v", "mixer.v_proj"),
        ("attn_output", "mixer.o_proj"),
        ("ffn_up", "mixer.up_proj"),
        ("ffn_down", "mixer.down_proj"),
        ("ffn_gate_inp", "mixer.gate"),
        ("ffn_up_exps", "mixer.experts.up_proj"),
        ("ffn_down_exps", "mixer.experts.down_proj"),
        ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
        ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
        ("ffn_latent_down", "mixer.fc1_latent_proj"),
        ("ffn_latent_up", "mixer.fc2_latent_proj"),
        ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        ("ssm_in", "mixer.in_proj"),
        ("ssm_conv1d", "mixer.conv1d"),
        ("ssm_dt.bias", "mixer.dt_bias"),
        ("ssm_a", "mixer.A"),
        ("ssm_d", "mixer.D"),
        ("ssm_norm", "mixer.norm"),
        ("ssm_out", "mixer.out_proj"),
    ],
    ..GgufForm::not_yet("nemotron_h")
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 4096, theta: 10_000.0 };

/// Part that a layer consists of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerPart {
    StateSpace,
    Attention,
    Network,
    Experts,
}

/// Sizes of the experts.
struct NemotronExperts {
    count: u64,
    width: u64,
    top_k: u64,
    shared_width: u64,
    latent: Option<u64>,
    rule: SigmoidRouter,
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[("head_dim", "attention_head_dim")]);
    let parts = parts(config)?;
    let activation = config.activation("mlp_hidden_act", Activation::ReluSquared)?;
    let mut dense = Dense {
        norm_epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-5),
        root: "backbone.",
        embedding: "embeddings.weight",
        final_norm: "norm_f",
        activation,
        ..Dense::from_config_with(config, DEFAULTS, parts.len() as u64)?
    };
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let sizes = StateSpaceSizes {
        heads: number("mamba_num_heads", 128)?,
        groups: number("n_groups", 8)?,
        head_dim: number("mamba_head_dim", 64)?,
        state_dim: number("ssm_state_size", 128)?,
        kernel: number("conv_kernel", 4)?,
        // transformers uses this key for the bound, and not `time_step_limit`.
        step_limits: (config.float("time_step_min")?.unwrap_or(0.001), None),
        epsilon: dense.norm_epsilon,
    };
    dense.intermediate = number("intermediate_size", 21_504)?;
    let experts = NemotronExperts {
        count: number("n_routed_experts", 8)?,
        width: number("moe_intermediate_size", 7688)?,
        top_k: number("num_experts_per_tok", 2)?,
        shared_width: number("moe_shared_expert_intermediate_size", 7688)?,
        latent: config.unsigned("moe_latent_size")?,
        rule: SigmoidRouter::from_config(config, true, 1.0)?,
    };
    Ok(of_parts(dense, names, &parts, sizes, &experts))
}

/// Returns the part of each layer: by a list of types, or by a pattern of letters.
fn parts(config: Config<'_>) -> Result<Vec<LayerPart>, Error> {
    let unknown = |kind: &str| {
        fail(format!("layer type `{kind}` is not supported, expected linear_attention, full_attention, mlp or moe"))
    };
    let part = |kind: &str| match kind {
        "M" | "mamba" | "linear_attention" => Ok(LayerPart::StateSpace),
        "*" | "attention" | "full_attention" => Ok(LayerPart::Attention),
        "-" | "mlp" => Ok(LayerPart::Network),
        "E" | "moe" => Ok(LayerPart::Experts),
        other => Err(unknown(other)),
    };
    let parts: Vec<LayerPart> = match (config.text("hybrid_override_pattern"), config.list("layers_block_type")?) {
        (_, Some(types)) => {
            types.iter().map(|kind| part(kind.as_str().unwrap_or_default())).collect::<Result<_, _>>()?
        }
        (Some(pattern), None) => {
            let letters = pattern.split("").filter(|letter| !letter.is_empty());
            letters.map(part).collect::<Result<_, _>>()?
        }
        (None, None) => return Err(fail("`layers_block_type` is missing")),
    };
    layer_count(parts.len() as u64)?;
    Ok(parts)
}

/// Reads GGUF metadata. Layers with key and value heads are attention, layers with a
/// nonzero `feed_forward_length` are networks or experts, all others are state space models.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { activation: Activation::ReluSquared, ..Dense::from_gguf(keys)? };
    let layers = dense.layers.len();
    let none = || vec![false; layers];
    let attends = keys.layers_with("attention.head_count_kv", layers)?.unwrap_or_else(none);
    let part = |index: usize| {
        let has = |module: &str| names.has(&format!("model.layers.{index}.mixer.{module}.weight"));
        match attends[index] {
            true => LayerPart::Attention,
            false if has("gate") => LayerPart::Experts,
            false if has("up_proj") => LayerPart::Network,
            false => LayerPart::StateSpace,
        }
    };
    let parts: Vec<LayerPart> = (0..layers).map(part).collect();
    let sizes = StateSpaceSizes::from_gguf(keys, dense.norm_epsilon)?;
    let number = |key: &str| Ok::<_, Error>(keys.unsigned(key)?.unwrap_or(0));
    let experts = NemotronExperts {
        count: number("expert_count")?,
        width: number("expert_feed_forward_length")?,
        top_k: number("expert_used_count")?,
        shared_width: number("expert_shared_feed_forward_length")?,
        latent: keys.unsigned("moe_latent_size")?.filter(|width| *width > 0),
        rule: SigmoidRouter::from_gguf(keys, true)?,
    };
    if parts.contains(&LayerPart::Experts) && experts.count == 0 {
        return Err(gguf_keys::fail("`expert_count` is missing"));
    }
    Ok(of_parts(dense, names, &parts, sizes, &experts))
}

/// Returns a blueprint whose layers consist of one part each.
fn of_parts(
    mut dense: Dense,
    names: &TensorNames,
    parts: &[LayerPart],
    sizes: StateSpaceSizes,
    experts: &NemotronExperts,
) -> Blueprint {
    let (root, activation, width) = (dense.root, dense.activation, dense.intermediate);
    dense.attention_modules = ["mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj"];
    dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    let norms: Vec<_> =
        (0..parts.len()).map(|index| dense.norm(names, &format!("{root}layers.{index}.norm"))).collect();
    let mut blueprint = dense.blueprint(names);
    for ((index, layer), (part, norm)) in blueprint.layers.iter_mut().enumerate().zip(parts.iter().zip(norms)) {
        let module = format!("{root}layers.{index}.mixer");
        let residual = Residual { before: Some(norm), ..Residual::default() };
        let attention = std::mem::replace(&mut layer.mixer, Mixer::None);
        let (mixer, ffn) = match part {
            LayerPart::StateSpace => (Mixer::StateSpace(Box::new(sizes.mixer(names, &module))), Ffn::None),
            LayerPart::Attention => (attention, Ffn::None),
            LayerPart::Network => (Mixer::None, Ffn::Plain(Box::new(network(names, &module, width, activation)))),
            LayerPart::Experts => (Mixer::None, Ffn::Experts(Box::new(experts.of(names, &module, activation)))),
        };
        let (mixer_residual, ffn_residual) =
            if ffn == Ffn::None { (residual, Residual::default()) } else { (Residual::default(), residual) };
        *layer = Layer::new((mixer, mixer_residual), (ffn, ffn_residual));
    }
    blueprint
}

fn network(names: &TensorNames, module: &str, width: u64, activation: Activation) -> Plain {
    let [up, down] = ["up_proj", "down_proj"].map(|own| projection(names, &format!("{module}.{own}")));
    Plain { width, activation, curve: None, up, down }
}

impl NemotronExperts {
    /// Returns the experts of a layer.
    fn of(&self, names: &TensorNames, module: &str, activation: Activation) -> Experts {
        let mut router = router(names, &format!("{module}.gate"), self.top_k);
        self.rule.set(&mut router, names, format!("{module}.gate.e_score_correction_bias"));
        let shared = format!("{module}.shared_experts");
        let latent = |width: u64| {
            let [down, up] =
                ["fc1_latent_proj", "fc2_latent_proj"].map(|own| projection(names, &format!("{module}.{own}")));
            ExpertLatent { width, down, up }
        };
        Experts {
            count: self.count,
            width: self.width,
            activation,
            router,
            input_norm: None,
            weighs_inputs: false,
            gate: None,
            up: matrices(names, module, "up_proj"),
            down: matrices(names, module, "down_proj"),
            shared: (self.shared_width > 0).then(|| SharedExpert {
                ffn: Network::Plain(Box::new(network(names, &shared, self.shared_width, activation))),
                gate: None,
            }),
            latent: self.latent.map(latent),
        }
    }
}

/// Returns the matrices of all experts: separate tensors, or a stack as GGUF files and transformers
/// 5 store them.
fn matrices(names: &TensorNames, module: &str, own: &str) -> Matrices {
    let stack = format!("{module}.experts.{own}");
    if names.has(&format!("{stack}.weight")) || names.has(&format!("{module}.experts")) {
        return Matrices::Items(projection(names, &stack));
    }
    if names.has(&stack) {
        let mut all = projection(names, &stack);
        all.weight.name = stack;
        return Matrices::Items(all);
    }
    Matrices::Each(projection(names, &format!("{module}.experts.{{}}.{own}")))
}
