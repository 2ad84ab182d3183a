//! Tests of affine groups against their definition, value by value.

use proptest::prelude::*;

use super::*;
use crate::{Dtype, Encoding};

/// The reference's formulas, applied value by value.
fn by_definition(values: &[f32], bits: usize) -> (f32, f32, Vec<u8>) {
    let largest = ((1u32 << bits) - 1) as f32;
    let (lo, hi) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), v| (v.min(lo), v.max(hi)));
    let low = lo.abs() > hi.abs();
    let edge = if low { lo } else { hi };
    let step = ((hi - lo) / largest).max(SMALLEST_STEP);
    let scale = if low { step } else { -step };
    let steps = (edge / scale).round_ties_even();
    let (scale, bias) = if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) };
    let code = |value: &f32| ((value - bias) / scale).round_ties_even().max(0.0).min(largest) as i32;
    (scale, bias, values.iter().map(|value| code(value).cast_unsigned() as u8).collect())
}

/// Values as in weights, values on ties, and values that no weight contains.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1f32..1.0,
        4 => (-64i32..64).prop_map(|whole| whole as f32 / 4.0),
        1 => any::<f32>(),
        1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-40, f32::MAX]),
    ]
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    let same = |length| number().prop_map(move |value| vec![value; length]);
    let length = (1usize..20).prop_map(|groups| groups * 128);
    length.prop_flat_map(move |length| {
        prop_oneof![
            4 => prop::collection::vec(-1f32..1.0, length),
            4 => prop::collection::vec(number(), length),
            1 => same(length),
        ]
    })
}

fn same(found: f32, expected: f32) -> bool {
    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
}

/// Checks that the fast code gives the same bits as the portable code, for scales and biases of
/// every type.
fn check_portable<const BITS: usize>(values: &[f32], group: usize) {
    let layout = CodeLayout { bits: BITS, group };
    for float in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let encoding = Encoding::Affine { bits: BITS as u8, group: group as u32 };
        let target = EncodingTarget { encoding, float, global_scale: None };
        let numbers = values.len() / group * (float.bits() / 8) as usize;
        let empty = || (vec![0; values.len() * BITS / 8], vec![0; numbers], vec![0; numbers]);
        let (mut found, mut expected) = (empty(), empty());
        let (data, scale, bias) = &mut found;
        encode(values, layout, target, EncodedBuffers { data, scale, bias });
        let (data, scale, bias) = &mut expected;
        Encode { values, layout, target, out: EncodedBuffers { data, scale, bias } }.run();
        assert!(found == expected, "{BITS} bits, {float}, groups of {group}: {values:?}");
    }
}

fn check<const BITS: usize>(values: &[f32], group: usize) {
    check_portable::<BITS>(values, group);
    let layout = CodeLayout { bits: BITS, group };
    let target = EncodingTarget {
        encoding: Encoding::Affine { bits: BITS as u8, group: group as u32 },
        float: Dtype::F32,
        global_scale: None,
    };
    let groups = values.len() / group;
    let (mut data, mut scale, mut bias) = (vec![0; values.len() * BITS / 8], vec![0; groups * 4], vec![0; groups * 4]);
    encode(values, layout, target, EncodedBuffers { data: &mut data, scale: &mut scale, bias: &mut bias });
    let arrays = Groups {
        codes: &data,
        scale: Numbers { dtype: Dtype::F32, bytes: &scale },
        bias: Numbers { dtype: Dtype::F32, bytes: &bias },
    };
    let mut decoded = vec![0.0; values.len()];
    simd::run(Decode { groups: arrays, layout, out: &mut decoded });
    let mut codes = vec![0; values.len()];
    bits::unpack::<BITS>(&data, &mut codes);
    for at in 0..groups {
        let of = at * group..(at + 1) * group;
        let (scale, bias, expected) = by_definition(&values[of.clone()], BITS);
        let found = (float::get(arrays.scale, at), float::get(arrays.bias, at));
        assert!(same(found.0, scale) && same(found.1, bias), "{BITS} bits: {found:?}, expected {:?}", (scale, bias));
        assert_eq!(codes[of.clone()], expected, "{BITS} bits, group {at} of {group}");
        for (value, code) in decoded[of].iter().zip(expected) {
            assert!(same(*value, scale * f32::from(code) + bias), "{BITS} bits: {value} of {code}");
        }
    }
}

proptest! {
    #[test]
    fn as_defined(values in row(), group in prop::sample::select(vec![32usize, 64, 128])) {
        check::<2>(&values, group);
        check::<3>(&values, group);
        check::<4>(&values, group);
        check::<5>(&values, group);
        check::<6>(&values, group);
        check::<8>(&values, group);
    }
}

/// Groups whose quotients are on ties, next to ties, and elsewhere, where a product with the
/// reciprocal could be rounded wrongly.
#[test]
fn next_to_ties() {
    fn row<const BITS: usize>(unit: f32) -> Vec<f32> {
        let codes = 1u32 << BITS;
        let mut values = Vec::new();
        for at in 0..1 << 14 {
            let tie = ((at % codes) as f32 + 0.5) * unit;
            let step = (at / codes % 9).cast_signed() - 4;
            values.push(f32::from_bits(tie.to_bits().wrapping_add_signed(step)));
        }
        // Every group contains the ends of the range, so that the step is about the unit.
        for group in values.chunks_mut(32) {
            (group[0], group[31]) = (0.0, (codes - 1) as f32 * unit);
        }
        values
    }
    fn rows<const BITS: usize>() {
        for unit in [1.0, 1.0 / 3.0, 0.01, 1e-6, 1e-7, 3e-8, 1e30, 1e36] {
            check::<BITS>(&row::<BITS>(unit), 32);
            check::<BITS>(&row::<BITS>(-unit), 32);
        }
    }
    rows::<2>();
    rows::<3>();
    rows::<4>();
    rows::<5>();
    rows::<6>();
    rows::<8>();
}
