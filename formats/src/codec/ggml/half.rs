//! IEEE half precision, the type of most blocks' scales.
//!
//! The conversions use arithmetic instead of tables or special instructions, so that the
//! surrounding loops vectorize on any machine.

/// Converts the bits of a half to float32. Exact.
#[inline(always)]
pub(super) fn to_f32(bits: u16) -> f32 {
    /// 2^112: the difference between the exponent biases.
    const REBIAS: f32 = f32::from_bits(0x7780_0000);
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * REBIAS;
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

/// Returns the bits of the nearest half, ties to even; infinity from 65520.
#[inline(always)]
pub(super) fn from_f32(number: f32) -> u16 {
    /// 65536, above every finite half.
    const TOO_LARGE: u32 = 0x4780_0000;
    /// 2^-14, the smallest normal half.
    const NORMAL: u32 = 0x3880_0000;
    const INFINITY: u32 = 0x7f80_0000;
    let bits = number.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if magnitude > INFINITY {
        0x7e00 | (magnitude >> 13) & 0x3ff
    } else if magnitude >= TOO_LARGE {
        0x7c00
    } else if magnitude < NORMAL {
        // Above 0.5, the spacing of float32 equals that of subnormal halves, so the addition
        // rounds.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        (magnitude + 0xfff + (magnitude >> 13 & 1) - (112 << 23)) >> 13
    };
    (rounded | bits >> 16 & 0x8000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let number = to_f32(bits);
            let quiet = if number.is_nan() { bits | 0x200 } else { bits };
            assert_eq!(from_f32(number), quiet, "{bits:04x}");
        }
        assert!((to_f32(0x3555) - 0.333_251_95).abs() < f32::EPSILON);
    }

    #[test]
    fn ties_go_to_even() {
        let step = 2f32.powi(-24);
        for (number, bits) in [
            (step * 0.5, 0),
            (step * 1.5, 2),
            (-step * 2.5, 0x8002),
            (1.0 + 2f32.powi(-11), 0x3c00),
            (1.0 + 3.0 * 2f32.powi(-11), 0x3c02),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (f32::NEG_INFINITY, 0xfc00),
        ] {
            assert_eq!(from_f32(number), bits, "{number}");
        }
    }
}
