//! Tests of microscaled groups against their definition, value by value.

use proptest::prelude::*;

use super::*;
use crate::Encoding;
use crate::codec::small_float::E2M1;

/// Returns the code of one value, as the reference computes it.
fn code(value: f32, micro: Micro, dtype: Dtype, scaling: Scaling) -> u8 {
    let element = float::round(dtype, value / scaling.step) * scaling.factor;
    if micro == Micro::Mxfp8 { to_e4m3(element) } else { to_e2m1(element) }
}

/// Values as in weights, powers of two and their neighbours, and values that no weight contains.
fn number() -> impl Strategy<Value = f32> {
    let power = (-20i32..20, -1i32..=1)
        .prop_map(|(exponent, step)| f32::from_bits(power_of_two(exponent).to_bits().wrapping_add_signed(step)));
    prop_oneof![
        8 => -1f32..1.0,
        4 => (-64i32..64).prop_map(|whole| whole as f32 / 8.0),
        2 => power,
        1 => any::<f32>(),
        1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-40, f32::MAX]),
    ]
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    (1usize..20).prop_flat_map(|groups| {
        prop_oneof![
            prop::collection::vec(-1f32..1.0, groups * 32),
            prop::collection::vec(number(), groups * 32),
            number().prop_map(move |value| vec![value; groups * 32]),
        ]
    })
}

fn check(values: &[f32], micro: Micro, target: EncodingTarget) {
    let (group, wide) = (micro.group() as usize, micro.bits() == 8);
    let mut data = vec![0; values.len() * usize::from(micro.bits()) / 8];
    let mut scale = vec![0; values.len() / group];
    encode(values, micro, target, EncodedBuffers { data: &mut data, scale: &mut scale, bias: &mut [] });
    let mut portable = (vec![0; data.len()], vec![0; scale.len()]);
    let out = EncodedBuffers { data: &mut portable.0, scale: &mut portable.1, bias: &mut [] };
    Encode { values, micro, target, out }.run();
    assert!(portable.0 == data && portable.1 == scale, "as the portable code: {values:?} to {target:?}");
    let mut codes = data.clone();
    if !wide {
        codes.resize(values.len(), 0);
        bits::unpack::<4>(&data, &mut codes);
    }
    let mut decoded = vec![0.0; values.len()];
    let global = target.multiplier();
    simd::run(Decode { codes: &data, scales: &scale, micro, global, out: &mut decoded });
    for (at, value) in values.iter().enumerate() {
        let members = &values[at / group * group..][..group];
        // `f32::max` ignores NaN.
        let largest = members.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let scaling = scaling(largest, micro, target);
        assert_eq!(scale[at / group], scaling.code, "scale of {members:?} to {target:?}");
        assert_eq!(codes[at], code(*value, micro, target.float, scaling), "{value} of {members:?} to {target:?}");
        let element = if wide { E4M3[usize::from(codes[at])] } else { E2M1[usize::from(codes[at])] };
        let expected = element * multiplier(micro, scaling.code, global);
        assert!(decoded[at].to_bits() == expected.to_bits() || decoded[at].is_nan() && expected.is_nan());
    }
}

proptest! {
    #[test]
    fn as_defined(values in row(), float in prop::sample::select(vec![Dtype::F32, Dtype::F16, Dtype::Bf16])) {
        for micro in [Micro::Nvfp4, Micro::Mxfp4, Micro::Mxfp8] {
            check(&values, micro, EncodingTarget { encoding: Encoding::Micro(micro), float, global_scale: None });
        }
        let encoding = Encoding::Micro(Micro::Nvfp4);
        check(&values, Micro::Nvfp4, EncodingTarget { encoding, float, global_scale: Some(3.0) });
    }
}

/// All neighbours of the midpoints between elements, in groups whose scale is 1, another power of
/// two, or not a power of two.
#[test]
fn next_to_ties() {
    for limit in [6.0f32, 448.0] {
        for unit in [1.0f32, 0.125, 0.1, 1e-30, 1e-38, 1e36] {
            let mut values = Vec::new();
            for at in 0..1 << 13 {
                // Quarters and halves of all element exponents, and a few steps to both sides.
                let number = f32::from_bits(((at / 8 % 256) << 19) + (116 << 23)).min(limit) * unit;
                let near = f32::from_bits(number.to_bits().wrapping_add_signed((at % 8).cast_signed() - 4));
                values.push(if at / 2048 % 2 == 0 { near } else { -near });
            }
            for group in values.chunks_mut(16) {
                group[7] = limit * unit;
            }
            // Leaves a single group of sixteen at the end.
            values.truncate(values.len() - 16);
            for float in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                for global_scale in [None, Some(limit * unit), Some(0.0)] {
                    let target = EncodingTarget { encoding: Encoding::Micro(Micro::Nvfp4), float, global_scale };
                    check(&values, Micro::Nvfp4, target);
                }
                for micro in [Micro::Mxfp4, Micro::Mxfp8] {
                    let target = EncodingTarget { encoding: Encoding::Micro(micro), float, global_scale: None };
                    check(&values[16..], micro, target);
                }
            }
        }
    }
}
