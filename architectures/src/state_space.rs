//! State space models (Mamba-2) as all families store them: one projection with the rows of the
//! gate, the input, `write`, `read` and the steps, and tensors of the same names.

use serde_json::Value;

use crate::blueprint::{NormKind, Rows, StateSpace, StateSpaceNorm, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::{decay_rate, layer_norm, projection};
use crate::gguf_keys::{self, Keys};
use crate::{Error, TensorNames};

/// Sizes of a state space model.
#[derive(Clone, Copy)]
pub(crate) struct StateSpaceSizes {
    pub(crate) heads: u64,
    pub(crate) groups: u64,
    /// Elements of a head.
    pub(crate) head_dim: u64,
    /// Elements of the state for each element of a head.
    pub(crate) state_dim: u64,
    /// Kernel size of the convolution, in positions.
    pub(crate) kernel: u64,
    pub(crate) step_limits: (f64, Option<f64>),
    /// Epsilon of the norm of the output.
    pub(crate) epsilon: f64,
}

impl StateSpaceSizes {
    /// Reads a config whose keys have the prefix `mamba_`.
    pub(crate) fn from_config(config: Config<'_>, epsilon: f64) -> Result<Self, Error> {
        let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
        let heads = number("mamba_n_heads", 128)?;
        let inner = config.required("hidden_size")?.saturating_mul(number("mamba_expand", 2)?);
        let head_dim = config.unsigned_or_auto("mamba_d_head")?;
        Ok(Self {
            heads,
            groups: number("mamba_n_groups", 1)?,
            head_dim: head_dim.unwrap_or_else(|| inner.checked_div(heads).unwrap_or(0)),
            state_dim: number("mamba_d_state", 256)?,
            kernel: number("mamba_d_conv", 4)?,
            step_limits: step_limits(config)?,
            epsilon,
        })
    }

    pub(crate) fn from_gguf(keys: Keys<'_>, epsilon: f64) -> Result<Self, Error> {
        let heads = keys.required("ssm.time_step_rank")?;
        let inner = keys.required("ssm.inner_size")?;
        let head_dim = inner.checked_div(heads).filter(|head_dim| head_dim.saturating_mul(heads) == inner);
        Ok(Self {
            heads,
            groups: keys.required("ssm.group_count")?,
            head_dim: head_dim.ok_or_else(|| {
                gguf_keys::fail(format!("`ssm.inner_size` is {inner}, expected a multiple of the {heads} heads"))
            })?,
            state_dim: keys.required("ssm.state_size")?,
            kernel: keys.required("ssm.conv_kernel")?,
            step_limits: (0.0, None),
            epsilon,
        })
    }

    /// Returns the mixer below a module.
    pub(crate) fn mixer(self, names: &TensorNames, module: &str) -> StateSpace {
        let Self { heads, groups, head_dim, state_dim, kernel, step_limits, epsilon } = self;
        let own = |name: &str| format!("{module}.{name}");
        let tensor = |name: &str| Tensor::named(own(name));
        let all = projection(names, &own("in_proj"));
        // The check of the blueprint refuses sizes that overflow.
        let (inner, shared) = (heads.saturating_mul(head_dim), groups.saturating_mul(state_dim));
        let mut first = 0;
        let [gate, input, write, read, step] = [inner, inner, shared, shared, heads].map(|count| {
            let part = all.rows(Rows::run(first, count));
            first = first.saturating_add(count);
            part
        });
        let has_norm = names.has(&own("norm.weight"));
        let norm = || crate::Norm { kind: NormKind::Rms, ..layer_norm(names, &own("norm"), epsilon) };
        let bias = own("conv1d.bias");
        StateSpace {
            heads,
            groups,
            head_dim,
            state_dim,
            gate,
            input,
            write,
            read,
            step,
            scales: None,
            step_bias: tensor("dt_bias"),
            step_limits,
            decay_rate: decay_rate(names, module),
            skip: tensor("D"),
            kernel,
            convolution: tensor("conv1d.weight"),
            convolution_bias: names.has(&bias).then(|| Tensor::named(bias)),
            norm: has_norm.then(|| StateSpaceNorm { norm: norm(), groups, precedes_gate: false }),
            output: projection(names, &own("out_proj")),
        }
    }
}

/// Reads the bounds of steps. transformers writes an infinite bound as an object.
pub(crate) fn step_limits(config: Config<'_>) -> Result<(f64, Option<f64>), Error> {
    let Some(limits) = config.list("time_step_limit")? else { return Ok((0.0, None)) };
    match limits {
        [least, most] if least.is_number() && (most.is_number() || is_infinity(most)) => {
            Ok((least.as_f64().unwrap_or(0.0), most.as_f64().filter(|most| *most < f64::MAX)))
        }
        _ => Err(fail(format!("`time_step_limit` has {} items, expected two numbers", limits.len()))),
    }
}

/// True for the objects and texts that stand for an infinite number.
fn is_infinity(value: &Value) -> bool {
    let texts = || value.as_object().into_iter().flat_map(|map| map.values()).chain([value]).filter_map(Value::as_str);
    texts().any(|text| text == "Infinity" || text == "inf")
}
