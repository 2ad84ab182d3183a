//! Falcon-H1: attention beside a state space model in each layer, with constant factors of most
//! projections.

use crate::blueprint::{Blueprint, Ffn, Mixer, SecondMixer};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, NormNames, PRE_NORMS};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::state_space::StateSpaceSizes;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "falcon_h1",
    model_types: &["falcon_h1"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("ffn_norm", "post_attention_layernorm.weight"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_dt.bias", "mamba.dt_bias"),
            ("ssm_a", "mamba.A"),
            ("ssm_d", "mamba.D"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
        ],
        ..GgufForm::not_yet("falcon-h1")
    },
    hugging_face: HuggingFaceForm::of("FalconH1ForCausalLM", "falcon_h1"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 8192, ..LLAMA };
const NORMS: NormNames = NormNames { before_ffn: Some("pre_ff_layernorm"), ..PRE_NORMS };
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("rms_norm_eps", 1e-5), ("mamba_d_ssm", 1024.0)];

/// Constant factors of a config. The class has 1 for missing ones.
struct Factors {
    attention_in: f64,
    attention_out: f64,
    key: f64,
    scan_in: f64,
    scan_out: f64,
    /// Of the gate, the input, `write`, `read` and the steps of the state space model.
    scan: [f64; 5],
    /// Of the gate and of the output of the network.
    network: [f64; 2],
}

impl Factors {
    fn read(config: Config<'_>) -> Result<Self, Error> {
        let factor = |key: &str| -> Result<f64, Error> {
            let factor = config.float(key)?.unwrap_or(1.0);
            if factor > 0.0 {
                Ok(factor)
            } else {
                Err(fail(format!("`{key}` is {factor}, expected a positive number")))
            }
        };
        Ok(Self {
            attention_in: factor("attention_in_multiplier")?,
            attention_out: factor("attention_out_multiplier")?,
            key: factor("key_multiplier")?,
            scan_in: factor("ssm_in_multiplier")?,
            scan_out: factor("ssm_out_multiplier")?,
            scan: numbers(config, "ssm_multipliers")?,
            network: numbers(config, "mlp_multipliers")?,
        })
    }
}

/// Whether a factor changes numbers.
fn is_factor(factor: f64) -> bool {
    (factor - 1.0).abs() > 0.0
}

/// Reads a list of `N` numbers; all are 1 if it is missing.
fn numbers<const N: usize>(config: Config<'_>, key: &str) -> Result<[f64; N], Error> {
    let Some(list) = config.list(key)? else { return Ok([1.0; N]) };
    let numbers: Option<Vec<f64>> = list.iter().map(serde_json::Value::as_f64).collect();
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| fail(format!("`{key}` has {} items, expected {N} numbers", list.len())))
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let factors = Factors::read(config)?;
    let has_bias = |key: &str| Ok::<_, Error>(config.flag(key)? == Some(true));
    // The factors of inputs are applied to outputs here.
    let has_effect = |factors: &[f64]| factors.iter().any(|factor| is_factor(*factor));
    if (has_bias("mamba_proj_bias")? && is_factor(factors.scan_in))
        || (has_bias("attention_bias")? && has_effect(&[factors.attention_in, factors.key]))
        || (has_bias("mlp_bias")? && has_effect(&factors.network))
    {
        return Err(fail("projections with biases and constant factors cannot be run yet"));
    }
    let mut dense = Dense {
        norms: NORMS,
        network_modules: ["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"],
        final_norm: "final_layernorm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    // 1 is the number of the class for a missing key.
    let factor = |key: &str| Ok::<_, Error>(config.float(key)?.filter(|factor| is_factor(*factor)));
    dense.embedding_scale = factor("embedding_multiplier")?;
    dense.output_scale = factor("lm_head_multiplier")?;
    dense.attention_scale *= factors.key * factors.attention_in.powi(2);
    let sizes = sizes(config, dense.norm_epsilon)?;
    let normed = config.flag("mamba_rms_norm")?.unwrap_or(false);
    let precedes_gate = config.flag("mamba_norm_before_gate")?.unwrap_or(true);
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let mut scan = sizes.mixer(names, &format!("model.layers.{index}.mamba"));
        scan.scales = Some(factors.scan.map(|scale| scale * factors.scan_in));
        scan.norm = scan.norm.filter(|_| normed).map(|norm| crate::StateSpaceNorm { precedes_gate, ..norm });
        // Values have the factor of the input too.
        let attention = factors.attention_in * factors.attention_out;
        layer.mixer_residual.scale = Some(attention);
        let scale = factors.scan_out / attention;
        layer.second_mixer = Some(Box::new(SecondMixer { mixer: Mixer::StateSpace(Box::new(scan)), scale }));
        layer.ffn_residual.scale = Some(factors.network[1]);
        if let Ffn::Gated(gated) = &mut layer.ffn {
            gated.gate_scale = Some(factors.network[0]);
        }
    }
    Ok(blueprint)
}

/// Reads the sizes of the state space models. If the config states the width of all heads, it
/// replaces the one that follows from `mamba_expand`.
fn sizes(config: Config<'_>, epsilon: f64) -> Result<StateSpaceSizes, Error> {
    let mut sizes = StateSpaceSizes::from_config(config, epsilon)?;
    if let Some(inner) = config.unsigned("mamba_d_ssm")?
        && config.unsigned_or_auto("mamba_d_head")?.is_none()
    {
        sizes.head_dim = inner.checked_div(sizes.heads).unwrap_or(0);
    }
    Ok(sizes)
}

/// Reads GGUF metadata. The converter multiplies the weights by all factors.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_gguf(keys)?;
    let sizes = StateSpaceSizes::from_gguf(keys, dense.norm_epsilon)?;
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let scan = sizes.mixer(names, &format!("model.layers.{index}.mamba"));
        layer.second_mixer = Some(Box::new(SecondMixer { mixer: Mixer::StateSpace(Box::new(scan)), scale: 1.0 }));
    }
    Ok(blueprint)
}
