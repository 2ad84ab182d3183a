//! Mamba 1 and Falcon Mamba: selective state space models, without feed-forward networks. Falcon
//! Mamba normalizes steps, `write` and `read` without weights.

use super::mamba2::{self, MambaSizes};
use crate::blueprint::{Blueprint, Mixer};
use crate::config_json::{Config, fail};
use crate::dense::{layer_count, unweighted_norm, vocabulary};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::selective_scan::{ScanSizes, step_rank};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mamba",
    model_types: &["mamba", FALCON],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("attn_norm", "norm"),
            ("ssm_in", "mixer.in_proj"),
            ("ssm_conv1d", "mixer.conv1d"),
            ("ssm_x", "mixer.x_proj"),
            ("ssm_dt", "mixer.dt_proj"),
            ("ssm_a", "mixer.A"),
            ("ssm_d", "mixer.D"),
            ("ssm_out", "mixer.out_proj"),
        ],
        ..GgufForm::not_yet("mamba")
    },
    hugging_face: HuggingFaceForm::of("MambaForCausalLM", "mamba"),
};

const FALCON: &str = "falcon_mamba";
/// Epsilon of Falcon Mamba's norms without weights.
const EPSILON: f64 = 1e-6;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    if config.text("hidden_act").is_some_and(|name| name != "silu") {
        return Err(fail("`hidden_act` is not silu, which cannot be run yet for this family"));
    }
    let hidden = config.required("hidden_size")?;
    let width = match config.unsigned("intermediate_size")? {
        Some(width) => width,
        None => hidden.saturating_mul(number("expand", 2)?),
    };
    let scan = ScanSizes {
        width,
        state_dim: number("state_size", 16)?,
        rank: step_rank(config, "time_step_rank", hidden)?,
        kernel: number("conv_kernel", 4)?,
    };
    let is_normed = config.text("model_type") == Some(FALCON);
    let epsilon = config.float("mixer_rms_eps")?.unwrap_or(EPSILON);
    let sizes = MambaSizes {
        vocabulary: config.required("vocab_size")?,
        hidden,
        layers: layer_count(config.required("num_hidden_layers")?)?,
        context: mamba2::CONTEXT,
        epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-5),
        names: mamba2::IN_FOLDERS,
    };
    Ok(blueprint(names, &sizes, scan, is_normed.then_some(epsilon)))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let scan = ScanSizes::from_gguf(keys)?;
    let epsilon = keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5);
    let sizes = MambaSizes {
        vocabulary: vocabulary(keys)?,
        hidden: keys.required("embedding_length")?,
        layers: layer_count(keys.required("block_count")?)?,
        context: keys.required("context_length")?,
        epsilon,
        names: mamba2::IN_FILES,
    };
    // llama.cpp normalizes with the epsilon of the other norms.
    let is_normed = keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false);
    Ok(blueprint(names, &sizes, scan, is_normed.then_some(epsilon)))
}

fn blueprint(names: &TensorNames, sizes: &MambaSizes, scan: ScanSizes, norm: Option<f64>) -> Blueprint {
    mamba2::blueprint(names, sizes, |module| {
        Mixer::SelectiveScan(Box::new(scan.mixer(names, module, |_| norm.map(unweighted_norm))))
    })
}
