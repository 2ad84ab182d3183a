//! Selective state space models (Mamba 1) as all families store them: one projection with the rows
//! of the input and the gate, one with those of the steps, `write` and `read`, and tensors of the
//! same names.

use crate::blueprint::{Norm, Rows, ScanStep, ScanVector, SelectiveScan, Tensor};
use crate::config_json::Config;
use crate::dense::{decay_rate, projection};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

/// Sizes of a selective state space model.
#[derive(Clone, Copy)]
pub(crate) struct ScanSizes {
    /// Number of channels.
    pub(crate) width: u64,
    pub(crate) state_dim: u64,
    /// Rank of the projection of steps.
    pub(crate) rank: u64,
    /// Kernel size of the convolution, in positions.
    pub(crate) kernel: u64,
}

impl ScanSizes {
    pub(crate) fn from_gguf(keys: Keys<'_>) -> Result<Self, Error> {
        Ok(Self {
            width: keys.required("ssm.inner_size")?,
            state_dim: keys.required("ssm.state_size")?,
            rank: keys.required("ssm.time_step_rank")?,
            kernel: keys.required("ssm.conv_kernel")?,
        })
    }

    /// Returns the mixer below a module. `norm` returns the norm of the steps, of `write` and of
    /// `read`, by the name that Jamba gives it, if the model has them.
    pub(crate) fn mixer(self, names: &TensorNames, module: &str, norm: impl Fn(&str) -> Option<Norm>) -> SelectiveScan {
        let Self { width, state_dim, rank, kernel } = self;
        let own = |name: &str| format!("{module}.{name}");
        let (both, shared) = (projection(names, &own("in_proj")), projection(names, &own("x_proj")));
        let bias = own("conv1d.bias");
        // The check of the blueprint refuses sizes that overflow.
        let vector =
            |first: u64, name: &str| ScanVector { by: shared.rows(Rows::run(first, state_dim)), norm: norm(name) };
        SelectiveScan {
            width,
            state_dim,
            gate: both.rows(Rows::run(width, width)),
            input: both.rows(Rows::run(0, width)),
            step: ScanStep {
                rank,
                down: shared.rows(Rows::run(0, rank)),
                norm: norm("dt_layernorm"),
                up: projection(names, &own("dt_proj")),
            },
            write: vector(rank, "b_layernorm"),
            read: vector(rank.saturating_add(state_dim), "c_layernorm"),
            decay_rate: decay_rate(names, module),
            skip: Tensor::named(own("D")),
            kernel,
            convolution: Tensor::named(own("conv1d.weight")),
            convolution_bias: names.has(&bias).then(|| Tensor::named(bias)),
            output: projection(names, &own("out_proj")),
        }
    }
}

/// Reads the rank of the projection of steps; `auto` and no value mean a sixteenth of the width of
/// the stream.
pub(crate) fn step_rank(config: Config<'_>, key: &str, hidden: u64) -> Result<u64, Error> {
    Ok(config.unsigned_or_auto(key)?.unwrap_or(hidden.div_ceil(16)))
}
