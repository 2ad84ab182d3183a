//! Microscaled groups: `value = element · scale`, as MLX's CPU backend makes them.
//!
//! nvfp4 has an E4M3 scale for 16 elements, the nearest to what makes the largest one 6; a global scale moves all scales
//! into the range of E4M3. The mx types have a power of two for 32 elements, the smallest that keeps all in range; its
//! code wraps around where it does not fit into a byte.

use super::float;
use super::rows::{Output, Target};
use super::small_float::{E2M1, E4M3, e8m0, exponent_above, power_of_two, to_e2m1, to_e4m3};
use crate::encoding::Micro;
use crate::{Dtype, Weight};

/// The largest product of an element and a scale of nvfp4: 6 · 448.
pub(super) const NVFP4_LARGEST: f32 = 2688.0;

/// How elements of a group are computed: `element = round(value / step) · factor`.
#[derive(Clone, Copy, Debug, Default)]
struct Scaling {
    /// What values are divided by.
    step: f32,
    /// What the quotient is multiplied with after it was rounded: the global scale of nvfp4, else 1.
    factor: f32,
    /// The scale's code.
    code: u8,
}

/// Encodes whole groups.
pub(super) fn encode(values: &[f32], micro: Micro, target: Target, out: Output<'_>) {
    encode_portably(values, micro, target, out);
}

pub(super) fn decode_row(weight: &Weight<'_>, micro: Micro, row: usize, out: &mut [f32]) {
    let scale = weight.scale.expect("invariant: a microscaled weight has scales");
    decode(weight.row_of(weight.data, row), weight.row_of(scale.bytes, row), micro, weight.global_scale, out);
}

fn decode(codes: &[u8], scales: &[u8], micro: Micro, global: Option<f32>, out: &mut [f32]) {
    decode_portably(codes, scales, micro, global, out);
}

fn encode_portably(values: &[f32], micro: Micro, target: Target, out: Output<'_>) {
    let group = micro.group() as usize;
    let codes = out.data.chunks_exact_mut(group * usize::from(micro.bits()) / 8);
    for ((values, codes), code) in values.chunks_exact(group).zip(codes).zip(out.scale) {
        let scaling = scaling(largest_of(values), micro, target);
        *code = scaling.code;
        encode_group(values, micro, target.float, scaling, codes);
    }
}

/// The largest magnitude; NaN does not count.
fn largest_of(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()))
}

/// The scale of a group with that largest magnitude.
#[inline]
fn scaling(largest: f32, micro: Micro, target: Target) -> Scaling {
    let limit = if micro == Micro::Mxfp8 { 448.0 } else { 6.0 };
    let wanted = float::round(target.float, largest / limit);
    if micro == Micro::Nvfp4 {
        let factor = target.global_scale.map_or(1.0, |largest| NVFP4_LARGEST / largest);
        let code = to_e4m3(wanted * factor);
        return Scaling { step: E4M3[usize::from(code)], factor, code };
    }
    let exponent = exponent_above(wanted);
    let step = float::round(target.float, power_of_two(exponent));
    // Only the lowest eight bits are kept: what is out of range wraps around, as in the reference.
    Scaling { step, factor: 1.0, code: (exponent + 127).cast_unsigned() as u8 }
}

/// The elements of one group, packed.
fn encode_group(values: &[f32], micro: Micro, dtype: Dtype, scaling: Scaling, codes: &mut [u8]) {
    let element = |value: f32| float::round(dtype, value / scaling.step) * scaling.factor;
    if micro == Micro::Mxfp8 {
        for (code, value) in codes.iter_mut().zip(values) {
            *code = to_e4m3(element(*value));
        }
    } else {
        for (code, pair) in codes.iter_mut().zip(values.as_chunks::<2>().0) {
            *code = to_e2m1(element(pair[0])) | to_e2m1(element(pair[1])) << 4;
        }
    }
}

/// What the elements of a group are multiplied with.
#[inline]
fn multiplier(micro: Micro, code: u8, global: Option<f32>) -> f32 {
    match (micro, global) {
        (Micro::Nvfp4, Some(global)) => E4M3[usize::from(code)] * global,
        (Micro::Nvfp4, None) => E4M3[usize::from(code)],
        (Micro::Mxfp4 | Micro::Mxfp8, _) => e8m0(code),
    }
}

fn decode_portably(codes: &[u8], scales: &[u8], micro: Micro, global: Option<f32>, out: &mut [f32]) {
    let group = micro.group() as usize;
    let groups = codes.chunks_exact(group * usize::from(micro.bits()) / 8).zip(out.chunks_exact_mut(group));
    for ((codes, out), scale) in groups.zip(scales) {
        let scale = multiplier(micro, *scale, global);
        if micro == Micro::Mxfp8 {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = E4M3[usize::from(*code)] * scale;
            }
        } else {
            for (out, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *out = [code & 15, code >> 4].map(|code| E2M1[usize::from(code)] * scale);
            }
        }
    }
}
