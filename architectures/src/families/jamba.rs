//! Jamba: selective state space models, attention without positions in a few layers, and experts in
//! every other layer.

use crate::blueprint::{Blueprint, Mixer, Norm, NormKind, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, NormNames, layer_norm, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::selective_scan::{ScanSizes, step_rank};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "jamba",
    model_types: &["jamba"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_x", "mamba.x_proj"),
            ("ssm_dt", "mamba.dt_proj"),
            ("ssm_dt_norm", "mamba.dt_layernorm"),
            ("ssm_b_norm", "mamba.b_layernorm"),
            ("ssm_c_norm", "mamba.c_layernorm"),
            ("ssm_a", "mamba.A"),
            ("ssm_d", "mamba.D"),
            ("ssm_out", "mamba.out_proj"),
        ],
        ..GgufForm::not_yet("jamba")
    },
    hugging_face: HuggingFaceForm::of("JambaForCausalLM", "jamba"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 262_144, ..LLAMA };
const NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("pre_ff_layernorm"),
    after_ffn: None,
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let mut dense = Dense {
        norms: NORMS,
        network_modules: ["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"],
        final_norm: "final_layernorm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    let layers = dense.layers.len() as u64;
    let every = |step: u64, first: u64| (0..layers).map(move |layer| layer % step == first);
    let attends = every(config.step("attn_layer_period", 8)?, number("attn_layer_offset", 4)?);
    let count = experts::count(config, 16)?;
    let sparse = every(config.step("expert_layer_period", 2)?, number("expert_layer_offset", 1)?);
    let scan = ScanSizes {
        width: dense.hidden.saturating_mul(number("mamba_expand", 2)?),
        state_dim: number("mamba_d_state", 16)?,
        rank: step_rank(config, "mamba_dt_rank", dense.hidden)?,
        kernel: number("mamba_d_conv", 4)?,
    };
    let sizes = ExpertSizes {
        count,
        width: dense.intermediate,
        top_k: number("num_experts_per_tok", 2)?,
        activation: dense.activation,
    };
    let mut blueprint = dense.blueprint(names);
    with_scans(&mut blueprint, names, attends, scan);
    let layers = ExpertLayers {
        sizes,
        sparse: sparse.map(|sparse| sparse && count > 1).collect(),
        module: "feed_forward",
        modules: MODULES,
        shared: None,
    };
    layers.add(names, &mut blueprint, |router, module| {
        router.projection = projection(names, &format!("{module}.router"));
    });
    Ok(blueprint)
}

/// Reads GGUF metadata. Layers without key and value heads are state space models, and layers with
/// a router have experts.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_gguf(keys)?;
    dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    let layers = dense.layers.len();
    let attends = keys.layers_with("attention.head_count_kv", layers)?.unwrap_or_else(|| vec![true; layers]);
    let mut blueprint = dense.blueprint(names);
    with_scans(&mut blueprint, names, attends, ScanSizes::from_gguf(keys)?);
    if keys.unsigned("expert_count")?.is_some_and(|count| count > 0) {
        experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::Softmax)?;
    }
    Ok(blueprint)
}

/// Replaces the mixers of the layers without attention.
fn with_scans(
    blueprint: &mut Blueprint,
    names: &TensorNames,
    attends: impl IntoIterator<Item = bool>,
    scan: ScanSizes,
) {
    let epsilon = blueprint.epsilon();
    for (index, (layer, attends)) in blueprint.layers.iter_mut().zip(attends).enumerate() {
        if !attends {
            let module = format!("model.layers.{index}.mamba");
            let norm = |name: &str| {
                Some(Norm { kind: NormKind::Rms, ..layer_norm(names, &format!("{module}.{name}"), epsilon) })
            };
            layer.mixer = Mixer::SelectiveScan(Box::new(scan.mixer(names, &module, norm)));
        }
    }
}
