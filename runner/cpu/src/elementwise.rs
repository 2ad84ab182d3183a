//! Norms, activations and sums, row by row. Also compiled for AVX2, which is used if the machine
//! has it.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "instructions that were looked for"))]
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]

use architectures::Activation;

use super::instructions::Instructions;

/// Number of partial sums.
const LANES: usize = 16;
/// Factor of the quick approximation of GELU, and of gpt-oss's activation.
const QUICK_FACTOR: f32 = 1.702;

/// Defines a function that calls an inlined one, compiled for AVX2 if the machine has it.
macro_rules! dispatched {
    ($(#[$doc:meta])* $name:ident, $generic:ident, ($($parameter:ident: $type:ty),*)) => {
        $(#[$doc])*
        pub fn $name(instructions: Instructions, $($parameter: $type),*) {
            #[cfg(target_arch = "x86_64")]
            if instructions.has_avx2() {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn compiled($($parameter: $type),*) {
                    $generic($($parameter),*);
                }
                // SAFETY: the features were detected.
                return unsafe { compiled($($parameter),*) };
            }
            let _ = instructions;
            $generic($($parameter),*);
        }
    };
}

dispatched!(
    /// `out = x / sqrt(mean(x²) + epsilon) · weight`.
    rms_norm, rms_norm_generic, (x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32])
);
dispatched!(
    /// `out = (x - mean(x)) / sqrt(var(x) + epsilon) · weight`.
    layer_norm, layer_norm_generic, (x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32])
);
dispatched!(
    /// `x += scale · y`.
    add, add_generic, (x: &mut [f32], y: &[f32], scale: f32)
);
dispatched!(
    /// `x = activation(x)`.
    activate, activate_generic, (activation: Activation, x: &mut [f32])
);
dispatched!(
    /// `x = activation(x) · y`.
    gate, gate_generic, (activation: Activation, x: &mut [f32], y: &[f32])
);

#[inline(always)]
fn sum(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += of(*x);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|x| of(*x)).sum::<f32>()
}

#[inline(always)]
fn rms_norm_generic(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let scale = 1.0 / (sum(x, |x| x * x) / x.len() as f32 + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

#[inline(always)]
fn layer_norm_generic(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let mean = sum(x, |x| x) / x.len() as f32;
    let variance = sum(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
    let scale = 1.0 / (variance + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x - mean) * scale * weight;
    }
}

#[inline(always)]
fn add_generic(x: &mut [f32], y: &[f32], scale: f32) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += scale * y);
}

#[inline(always)]
fn activate_generic(activation: Activation, x: &mut [f32]) {
    match activation {
        Activation::Silu | Activation::ClampedSilu { .. } | Activation::BoundedSilu { .. } => {
            for x in x.iter_mut() {
                *x *= sigmoid(*x);
            }
        }
        Activation::GeluTanh => x.iter_mut().for_each(|x| *x = gelu_tanh(*x)),
        Activation::Gelu => x.iter_mut().for_each(|x| *x = gelu(*x)),
        Activation::GeluQuick => x.iter_mut().for_each(|x| *x *= sigmoid(QUICK_FACTOR * *x)),
        Activation::Relu => x.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::ReluSquared => x.iter_mut().for_each(|x| *x = x.max(0.0) * x.max(0.0)),
    }
}

#[inline(always)]
fn gate_generic(activation: Activation, x: &mut [f32], y: &[f32]) {
    match activation {
        Activation::ClampedSilu { limit } => {
            let limit = limit as f32;
            for (x, y) in x.iter_mut().zip(y) {
                let (gate, up) = (x.min(limit), y.clamp(-limit, limit));
                *x = gate * sigmoid(QUICK_FACTOR * gate) * (up + 1.0);
            }
        }
        Activation::BoundedSilu { limit } => {
            let limit = limit as f32;
            for (x, y) in x.iter_mut().zip(y) {
                let gate = x.min(limit);
                *x = gate * sigmoid(gate) * y.clamp(-limit, limit);
            }
        }
        Activation::Silu => x.iter_mut().zip(y).for_each(|(x, y)| *x = *x * sigmoid(*x) * y),
        Activation::GeluTanh => x.iter_mut().zip(y).for_each(|(x, y)| *x = gelu_tanh(*x) * y),
        Activation::Gelu | Activation::GeluQuick | Activation::Relu | Activation::ReluSquared => {
            activate_generic(activation, x);
            x.iter_mut().zip(y).for_each(|(x, y)| *x *= y);
        }
    }
}

/// `ln(1 + exp(x))`.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `positive · x² + 0.5 · x` if `x > 0`, else `negative · (exp(min(x, -1e-6)) - 1 - x) + 0.5 · x`.
pub fn xielu(x: f32, positive: f32, negative: f32) -> f32 {
    let curve = if x > 0.0 { positive * x * x } else { negative * (x.min(-1e-6).exp_m1() - x) };
    curve + 0.5 * x
}

/// `sign(x) · sqrt(max(|x|, least))`; 0 if `x` is 0.
pub fn signed_root(x: f32, least: f32) -> f32 {
    if x == 0.0 { 0.0 } else { x.abs().max(least).sqrt().copysign(x) }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x · (1 + tanh(√(2/π) · (x + 0.044715·x³))) / 2`, as `x · sigmoid(2·…)`.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const FACTOR: f32 = 1.595_769;
    x * sigmoid(FACTOR * (x + 0.044_715 * x * x * x))
}

/// `x · (1 + erf(x / √2)) / 2`.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let half = erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2);
    (f64::from(x) * 0.5 * (1.0 + half)) as f32
}

/// The error function, to 1.2e-7: W. J. Cody's approximation as in Numerical Recipes, `erfc`.
fn erf(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let sum = COEFFICIENTS.iter().fold(0.0, |sum, coefficient| sum * t + coefficient);
    let rest = t * (sum - x * x).exp();
    if x >= 0.0 { 1.0 - rest } else { rest - 1.0 }
}

/// Returns `exp(x)`, off by at most a few units in the last place. With `n = round(x / ln 2)` and
/// `r = x - n·ln 2`, it is `2ⁿ · exp(r)`; Cephes' polynomial approximates `exp(r)`. Written so that
/// compilers can vectorize it.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // Outside of these bounds the result is 0 or infinite. NaN stays NaN.
    let bounded = if x < -87.0 { -87.0 } else { x };
    let bounded = if bounded > 88.0 { 88.0 } else { bounded };
    // Adding and subtracting 1.5·2²³ rounds to an integer, whose bits are the low bits of the sum.
    let shifted = bounded * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = bounded - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let sum = POLYNOMIAL.iter().fold(0.0, |sum, coefficient| sum * r + coefficient);
    let y = sum * r * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    y * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_and_errors_are_exact_enough() {
        for i in -870..=880 {
            let x = i as f32 / 10.0;
            let (got, expected) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / expected - 1.0).abs() < 5e-7, "exp({x}): {got} is not {expected}");
        }
        assert!(exp(f32::NAN).is_nan());
        for (x, expected) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (-1.0, -0.842_700_792_9), (3.0, 0.999_977_909_5)] {
            assert!((erf(x) - expected).abs() < 2e-7, "erf({x})");
        }
    }

    #[test]
    fn rows_are_normed() {
        let (x, weight) = ([1.0, -2.0, 3.0], [1.0, 2.0, 0.5]);
        let mut out = [0.0; 3];
        rms_norm(Instructions::best(), &x, &weight, 1e-6, &mut out);
        let scale = 1.0 / (14.0f32 / 3.0).sqrt();
        assert!(out.iter().zip([scale, -4.0 * scale, 1.5 * scale]).all(|(a, b)| (a - b).abs() < 1e-5), "{out:?}");
        layer_norm(Instructions::best(), &x, &weight, 1e-6, &mut out);
        let (mean, scale) = (2.0 / 3.0, 1.0 / (38.0f32 / 9.0).sqrt());
        let expected = [(1.0 - mean) * scale, 2.0 * (-2.0 - mean) * scale, 0.5 * (3.0 - mean) * scale];
        assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{out:?}");
    }

    #[test]
    fn gates_are_as_they_say() {
        for (activation, expected) in [
            (Activation::Silu, 1.462_117_2),
            (Activation::GeluTanh, 1.682_384),
            (Activation::Gelu, 1.682_689_5),
            (Activation::GeluQuick, 2.0 * 0.845_796),
            (Activation::Relu, 2.0),
            (Activation::ReluSquared, 2.0),
            (Activation::ClampedSilu { limit: 0.5 }, 0.5 * 0.700_77 * 1.5),
            (Activation::BoundedSilu { limit: 0.5 }, 0.5 * 0.622_46 * 0.5),
        ] {
            let mut x = [1.0];
            gate(Instructions::best(), activation, &mut x, &[2.0]);
            assert!((x[0] - expected).abs() < 1e-4, "{activation:?}: {} is not {expected}", x[0]);
        }
    }
}
