//! Activations of the few vectors behind pooling. They are computed on the host, in float64,
//! whichever backend computes the layers.

use architectures::PooledActivation;
use kernels::elementwise::gelu;

/// Returns the activation of one element.
pub(crate) fn activate(activation: PooledActivation, x: f64) -> f64 {
    let sigmoid = || 1.0 / (1.0 + (-x).exp());
    match activation {
        PooledActivation::Tanh => x.tanh(),
        PooledActivation::Gelu => f64::from(gelu(x as f32)),
        PooledActivation::Relu => x.max(0.0),
        PooledActivation::Silu => x * sigmoid(),
        PooledActivation::Sigmoid => sigmoid(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `PyTorch`.
    #[test]
    fn activations_are_those_of_pytorch() {
        for (activation, expected) in [
            (PooledActivation::Tanh, -0.462_117),
            (PooledActivation::Gelu, -0.154_269),
            (PooledActivation::Relu, 0.0),
            (PooledActivation::Silu, -0.188_770),
            (PooledActivation::Sigmoid, 0.377_541),
        ] {
            let found = activate(activation, -0.5);
            assert!((found - expected).abs() < 1e-5, "{activation:?}: {found}");
        }
    }
}
