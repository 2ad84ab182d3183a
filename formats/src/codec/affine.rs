//! Affine groups: `value = scale · code + bias`, as MLX's CPU backend makes them.
//!
//! The end of a group's range that is farther from zero is the *edge*: it has code 0 and is kept exactly. Where that is
//! the upper end, codes count downwards and the scale is negative. The step is then changed so that zero is a whole number
//! of steps from the edge. Codes are computed with scale and bias as they are before these are rounded to their type.

use super::bits;
use super::float;
use super::rows::{Output, Target};
use crate::Weight;
use crate::weight::Numbers;

/// The smallest step.
const SMALLEST_STEP: f32 = 1e-7;

/// How codes are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub(super) bits: usize,
    /// Elements of a group: 32, 64 or 128.
    pub(super) group: usize,
}

impl Layout {
    /// The largest code.
    fn largest(self) -> f32 {
        ((1u32 << self.bits) - 1) as f32
    }
}

/// Rows of codes with their scales and biases, as many of each as there are groups.
#[derive(Clone, Copy, Debug)]
struct Groups<'a> {
    codes: &'a [u8],
    scale: Numbers<'a>,
    bias: Numbers<'a>,
}

/// Encodes whole groups.
pub(super) fn encode(values: &[f32], layout: Layout, target: Target, out: Output<'_>) {
    encode_portably(values, layout, target, out);
}

pub(super) fn decode_row(weight: &Weight<'_>, layout: Layout, row: usize, out: &mut [f32]) {
    let (Some(scale), Some(bias)) = (weight.scale, weight.bias) else {
        unreachable!("invariant: an affine weight has scales and biases")
    };
    let groups = Groups {
        codes: weight.row_of(weight.data, row),
        scale: Numbers { bytes: weight.row_of(scale.bytes, row), ..scale },
        bias: Numbers { bytes: weight.row_of(bias.bytes, row), ..bias },
    };
    decode(groups, layout, out);
}

fn decode(groups: Groups<'_>, layout: Layout, out: &mut [f32]) {
    decode_portably(groups, layout, out);
}

#[expect(clippy::cast_sign_loss, reason = "codes are clamped to 0 and above")]
#[expect(clippy::needless_pass_by_value, reason = "where to write is given away, as by every step before")]
fn encode_portably(values: &[f32], layout: Layout, target: Target, out: Output<'_>) {
    let number = (target.float.bits() / 8) as usize;
    let codes = out.data.chunks_exact_mut(layout.group * layout.bits / 8);
    let numbers = out.scale.chunks_exact_mut(number).zip(out.bias.chunks_exact_mut(number));
    for ((values, codes), (scale_out, bias_out)) in values.chunks_exact(layout.group).zip(codes).zip(numbers) {
        let (lo, hi) = range(values);
        let (scale, bias) = fit(lo, hi, layout.largest());
        for (values, codes) in values.chunks_exact(bits::RUN).zip(codes.chunks_exact_mut(layout.bits)) {
            let mut run = [0; bits::RUN];
            for (code, value) in run.iter_mut().zip(values) {
                // `max` turns NaN into 0.
                *code = ((value - bias) / scale).round_ties_even().max(0.0).min(layout.largest()) as u8;
            }
            bits::pack(layout.bits, &run, codes);
        }
        float::put(target.float, scale, scale_out);
        float::put(target.float, bias, bias_out);
    }
}

/// The smallest and the largest value; NaN does not count.
fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), value| (value.min(lo), value.max(hi)))
}

/// Scale and bias for values of a range and codes up to `largest`.
fn fit(lo: f32, hi: f32, largest: f32) -> (f32, f32) {
    let low = lo.abs() > hi.abs();
    let edge = if low { lo } else { hi };
    // `max` turns NaN into the smallest step.
    let step = ((hi - lo) / largest).max(SMALLEST_STEP);
    let scale = if low { step } else { -step };
    let steps = (edge / scale).round_ties_even();
    if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) }
}

fn decode_portably(groups: Groups<'_>, layout: Layout, out: &mut [f32]) {
    let codes = groups.codes.chunks_exact(layout.group * layout.bits / 8);
    for (group, (codes, out)) in codes.zip(out.chunks_exact_mut(layout.group)).enumerate() {
        let (scale, bias) = (float::get(groups.scale, group), float::get(groups.bias, group));
        for (codes, out) in codes.chunks_exact(layout.bits).zip(out.chunks_exact_mut(bits::RUN)) {
            let mut run = [0; bits::RUN];
            bits::unpack(layout.bits, codes, &mut run);
            for (out, code) in out.iter_mut().zip(run) {
                // Two roundings, on purpose.
                *out = scale * f32::from(code) + bias;
            }
        }
    }
}
