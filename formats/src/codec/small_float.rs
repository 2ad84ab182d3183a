//! The 4- and 8-bit floats of microscaled weights.
//!
//! *E2M1*: sign, 2 exponent bits, 1 mantissa bit. *E4M3* ("fn"): sign, 4 exponent bits with bias 7,
//! 3 mantissa bits, no infinities; 0x7f and 0xff are NaN. *E8M0*: a power of two. Source: OCP
//! Microscaling Formats 1.0. Where it leaves a choice, for ties and for values out of range, the
//! code follows MLX.
#![expect(clippy::inline_always, reason = "what is inlined into the work is compiled for AVX2")]

/// The values of E2M1 by code.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The values of E4M3 by code.
pub(super) const E4M3: [f32; 256] = e4m3_values();

/// The largest finite code of E4M3: 448.
const E4M3_LARGEST: u8 = 0x7e;

/// Above this magnitude, float32 cannot distinguish the distances to neighbouring E2M1 values.
pub(super) const E2M1_DISTINCT: f32 = 16_777_216.0;

const fn e4m3_values() -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3) & 15, code & 7);
        // Both are exact: a small integer times a power of two.
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa as f32 * power_of_two(-9),
            _ => (8 + mantissa) as f32 * power_of_two((exponent as u32).cast_signed() - 10),
        };
        values[code] = if code & 0x80 == 0 { magnitude } else { -magnitude };
        code += 1;
    }
    values
}

/// Returns `2^exponent` for exponents from -149 to 127; infinity above, 0 below.
pub(super) const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(match exponent {
        ..=-150 => 0,
        -149..=-127 => 1 << (exponent + 149),
        -126..=127 => (exponent + 127).cast_unsigned() << 23,
        128.. => 0x7f80_0000,
    })
}

/// Returns `2^(code - 127)`; 255 is infinity, as in MLX.
#[inline(always)]
pub(super) fn e8m0(code: u8) -> f32 {
    // Only the smallest value is subnormal.
    f32::from_bits(if code == 0 { 0x0040_0000 } else { u32::from(code) << 23 })
}

/// Returns the smallest exponent `e` with `2^e >= value`, for a positive finite value; 0 for any
/// other value.
#[inline(always)]
pub(super) fn exponent_above(value: f32) -> i32 {
    if !(value > 0.0 && value.is_finite()) {
        return 0;
    }
    // Subnormal numbers are made normal first, so that their exponent can be read from the bits.
    let (normal, shift) = if value < f32::MIN_POSITIVE { (value * power_of_two(64), 64) } else { (value, 0) };
    let bits = normal.to_bits();
    (bits >> 23).cast_signed() - 127 - shift + i32::from(bits & 0x007f_ffff != 0)
}

/// Returns the nearest E2M1 code. Ties go to the smaller magnitude, and zero results have code 0.
/// NaN has code 0, too, and so have numbers so large that all distances are equal in float32.
pub(super) fn to_e2m1(value: f32) -> u8 {
    if value.is_nan() || value.abs() > E2M1_DISTINCT {
        return nearest_e2m1(value);
    }
    distinct_to_e2m1(value)
}

/// Like [`to_e2m1`], for numbers up to [`E2M1_DISTINCT`], without branches.
#[inline(always)]
pub(super) fn distinct_to_e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    let mut code = 0;
    for middle in [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] {
        code += u32::from(magnitude > middle);
    }
    let sign = value.to_bits() >> 28 & 8;
    (if code > 0 { code | sign } else { 0 }) as u8
}

/// Returns the value of an E2M1 code, without using the table.
#[inline(always)]
pub(super) fn e2m1(code: u8) -> f32 {
    let (sign, magnitude) = (u32::from(code & 8) << 28, u32::from(code & 7));
    let subnormal = (magnitude as f32 * 0.5).to_bits();
    let normal = (magnitude << 22) + (126 << 23);
    f32::from_bits(sign | if magnitude < 2 { subnormal } else { normal })
}

/// Returns the value of an E4M3 code, without using the table.
#[inline(always)]
pub(super) fn e4m3(code: u8) -> f32 {
    let (sign, magnitude) = (u32::from(code & 0x80) << 24, u32::from(code & 0x7f));
    let subnormal = (magnitude as f32 * power_of_two(-9)).to_bits();
    let normal = (magnitude << 20) + (120 << 23);
    let finite = if magnitude < 8 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude == 0x7f { f32::NAN.to_bits() } else { finite })
}

/// The definition: the first code with the smallest distance, rounded to float32.
fn nearest_e2m1(value: f32) -> u8 {
    let mut best = (f32::INFINITY, 0);
    for (code, candidate) in E2M1.iter().enumerate() {
        let distance = (value - candidate).abs();
        if distance < best.0 {
            best = (distance, code as u8);
        }
    }
    best.1
}

/// Returns the nearest E4M3 code, ties to even. Numbers from 448 and NaN become the largest finite
/// code; their sign is kept.
#[inline(always)]
pub(super) fn to_e4m3(value: f32) -> u8 {
    let sign = value.to_bits() >> 24 & 0x80;
    let magnitude = value.abs().to_bits();
    // The last bit of numbers from 2^14 is worth 2^-9, the step of subnormal E4M3.
    let subnormal = (value.abs() + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    let normal = ((magnitude + 0x0007_ffff + (magnitude >> 20 & 1)) >> 20).wrapping_sub(120 << 3);
    let code = if magnitude < power_of_two(-6).to_bits() { subnormal } else { normal };
    // NaN compares above all numbers here.
    (sign | if magnitude >= 448f32.to_bits() { u32::from(E4M3_LARGEST) } else { code }) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_lead_back() {
        for code in 0..=255u8 {
            let value = E4M3[usize::from(code)];
            assert_eq!(e4m3(code).to_bits(), value.to_bits(), "{code:#x}");
            let expected = if value.is_nan() { code & 0x80 | E4M3_LARGEST } else { code };
            assert_eq!(to_e4m3(value), expected, "{code:#x}");
            assert_eq!(exponent_above(e8m0(code)), if code == 255 { 0 } else { i32::from(code) - 127 });
        }
        for (code, value) in E2M1.iter().enumerate() {
            assert_eq!(e2m1(code as u8).to_bits(), value.to_bits(), "{code}");
            assert_eq!(to_e2m1(*value), if code == 8 { 0 } else { code as u8 });
        }
        assert_eq!((E4M3[0x38].to_bits(), E4M3[0x7e].to_bits()), (1f32.to_bits(), 448f32.to_bits()));
    }

    #[test]
    fn powers_and_their_neighbours() {
        for exponent in -149..=127 {
            let power = power_of_two(exponent);
            assert_eq!(f64::from(power).to_bits(), 2f64.powi(exponent).to_bits());
            assert_eq!(exponent_above(power), exponent);
            assert_eq!(exponent_above(power.next_up()), exponent + 1);
        }
    }

    #[test]
    fn large_numbers_are_told_apart_as_float32_does() {
        // At 2^25 + 12, the distances to 2, 3, 4 and 6 are rounded to the same number.
        for (value, code) in [(33_554_444.0, 4), (1e7, 7), (-1e7, 15), (1e9, 0), (f32::INFINITY, 0), (f32::NAN, 0)] {
            assert_eq!((to_e2m1(value), nearest_e2m1(value)), (code, code), "{value}");
        }
    }

    /// Returns the nearest E4M3 code by search; for ties, the even code.
    fn nearest_e4m3(value: f32) -> u8 {
        let magnitude = f64::from(value.abs().min(448.0));
        let distance = |code: u8| (f64::from(E4M3[usize::from(code)]) - magnitude).abs();
        let best = (0..=E4M3_LARGEST).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2))));
        best.expect("there are codes") | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    proptest! {
        #[test]
        fn nearest_of_all(value in prop_oneof![-600f32..600.0, -0.05f32..0.05, any::<f32>()]) {
            prop_assume!(value.is_finite());
            prop_assert_eq!(to_e4m3(value), nearest_e4m3(value));
            prop_assert_eq!(to_e2m1(value), nearest_e2m1(value));
        }

        #[test]
        fn nearest_at_ties(at in 0usize..126, step in -1i32..=1) {
            let middle = f32::midpoint(E4M3[at], E4M3[at + 1]);
            let value = f32::from_bits(middle.to_bits().wrapping_add_signed(step));
            prop_assert_eq!(to_e4m3(value), nearest_e4m3(value));
        }
    }
}
