//! Jamba: selective state space models, attention without positions in a few layers, and experts in
//! every other layer.

use crate::blueprint::{Blueprint, Mixer, Norm, NormKind};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, NormNames, layer_norm, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::selective_scan::{ScanSizes, step_rank};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "jamba",
    model_types: &["jamba"],
    read_config,
    gguf: &GgufForm::not_yet("jamba"),
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
    let epsilon = dense.norm_epsilon;
    let mut blueprint = dense.blueprint(names);
    for (index, (layer, attends)) in blueprint.layers.iter_mut().zip(attends).enumerate() {
        if !attends {
            let module = format!("model.layers.{index}.mamba");
            let norm = |name: &str| {
                Some(Norm { kind: NormKind::Rms, ..layer_norm(names, &format!("{module}.{name}"), epsilon) })
            };
            layer.mixer = Mixer::SelectiveScan(Box::new(scan.mixer(names, &module, norm)));
        }
    }
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
