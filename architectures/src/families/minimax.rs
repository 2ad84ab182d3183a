//! `MiniMax` 01: linear attention with a constant decay, softmax attention in some layers, experts,
//! and residuals from behind the norms.

use crate::blueprint::{Activation, Blueprint, LinearAttention, Mixer, NormKind, Residual, Rows};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, layer_norm, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, Norm, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "minimax",
    model_types: &["minimax"],
    read_config,
    gguf: &GgufForm::not_yet("minimax"),
    hugging_face: HuggingFaceForm::of("MiniMaxForCausalLM", "minimax"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 131_072, theta: 1_000_000.0, ..LLAMA };
/// Epsilon of the norm of linear attention, which is not in the config.
const EPSILON: f64 = 1e-6;
/// Number that the class adds where it divides by the number of layers.
const LEAST: f64 = 1e-5;

/// Factors of the stream and of a part of a layer: `stream · norm(x) + part · f(norm(x))`.
#[derive(Clone, Copy)]
struct ResidualFactors {
    stream: f64,
    part: f64,
}

impl ResidualFactors {
    fn read(config: Config<'_>, part: &str) -> Result<Self, Error> {
        let factor = |name: &str| -> Result<f64, Error> {
            let key = format!("{part}_{name}_factor");
            let factor = config.float(&key)?.unwrap_or(1.0);
            let is_valid = factor > 0.0 && factor.is_finite();
            if is_valid { Ok(factor) } else { Err(fail(format!("`{key}` is {factor}, expected a positive number"))) }
        };
        Ok(Self { stream: factor("alpha")?, part: factor("beta")? })
    }

    /// Returns the connection of a part whose input is the stream behind the last norm. The sum is
    /// `stream · (x + part / stream · f(x))`. The factor before the parenthesis does not change the
    /// output of the norm behind it, except that its epsilon counts less.
    fn residual(self, norm: Norm) -> Residual {
        Residual { before: None, after: None, scale: Some(self.part / self.stream), sum: Some(self.scaled(norm)) }
    }

    fn scaled(self, norm: Norm) -> Norm {
        Norm { epsilon: norm.epsilon / self.stream.powi(2), ..norm }
    }
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    dense.slide_all(config, None)?;
    let count = dense.layers.len();
    let sizes = ExpertSizes {
        count: experts::count(config, 8)?,
        width: config.unsigned("intermediate_size")?.unwrap_or(14_336),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(2),
        activation: dense.activation,
    };
    let is_linear = config.layers_of_type("linear_attention", count as u64)?;
    let is_linear = is_linear.unwrap_or_else(|| (0..count).map(|layer| layer % 2 == 1).collect());
    let [of_linear, of_full, of_network] =
        ["linear_attn", "full_attn", "mlp"].map(|part| ResidualFactors::read(config, part));
    let (of_linear, of_full, of_network) = (of_linear?, of_full?, of_network?);
    let (heads, head_dim, activation) = (dense.heads, dense.head_dim, dense.activation);
    let mut blueprint = dense.blueprint(names);
    let all = ExpertLayers {
        sizes,
        sparse: vec![true; count],
        module: "block_sparse_moe",
        modules: ["w1", "w3", "w2"],
        shared: None,
    };
    all.add(names, &mut blueprint, |router, _| router.normalize = true);
    // The norm before a part is also the one of the stream behind the part before it.
    let mut behind = blueprint.norm.take();
    for (index, layer) in blueprint.layers.iter_mut().enumerate().rev() {
        let invariant = || fail("a norm is missing");
        let [before_mixer, before_ffn] = [layer.mixer_residual.before.take(), layer.ffn_residual.before.take()];
        let of_mixer = if is_linear[index] { of_linear } else { of_full };
        layer.ffn_residual = of_network.residual(behind.take().ok_or_else(invariant)?);
        layer.mixer_residual = of_mixer.residual(before_ffn.ok_or_else(invariant)?);
        behind = before_mixer;
        if is_linear[index] {
            let module = format!("model.layers.{index}.self_attn");
            let own = linear_attention(names, &module, [heads, head_dim], activation);
            let decay_scale = 1.0 - index as f64 / ((count - 1) as f64 + LEAST) + LEAST;
            layer.mixer = Mixer::LinearAttention(Box::new(LinearAttention { decay_scale, ..own }));
        }
    }
    blueprint.embedding.norm = behind;
    Ok(blueprint)
}

/// Returns linear attention with a factor of 1 of its decay rates. Each head has the rows of its
/// query, key and value one after the other.
fn linear_attention(
    names: &TensorNames,
    module: &str,
    [heads, head_dim]: [u64; 2],
    activation: Activation,
) -> LinearAttention {
    let own = |name: &str| projection(names, &format!("{module}.{name}"));
    let (all, count, stride) = (own("qkv_proj"), heads.saturating_mul(head_dim), head_dim.saturating_mul(3));
    let part = |index: u64| all.rows(Rows { first: index.saturating_mul(head_dim), count, block: head_dim, stride });
    LinearAttention {
        heads,
        head_dim,
        decay_scale: 1.0,
        query: part(0),
        key: part(1),
        value: part(2),
        activation,
        norm: Norm { kind: NormKind::Rms, ..layer_norm(names, &format!("{module}.norm"), EPSILON) },
        gate: own("output_gate"),
        output: own("out_proj"),
    }
}
