//! Conversion of numbers to codes as in the reference, including cases that C leaves undefined.

/// Truncates towards zero. Numbers that do not fit give the smallest integer, as on x86.
#[inline(always)]
pub(super) fn truncate(number: f32) -> i32 {
    /// 2^31.
    const BEYOND: f32 = 2_147_483_648.0;
    if number < BEYOND { number as i32 } else { i32::MIN }
}

/// Added with the sign of a number, it makes truncation round to nearest, ties away from zero. It
/// is the largest float32 below one half: with one half itself, 0.49999997 would become 1.
pub(super) const ALMOST_HALF: f32 = 0.499_999_97;

/// Rounds to nearest, ties away from zero: C's `roundf`.
#[inline(always)]
pub(super) fn away_from_zero(number: f32) -> i32 {
    truncate(number + ALMOST_HALF.copysign(number))
}

/// Added to a number below 2^22, it leaves the nearest integer in the mantissa, ties to even.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// Rounds to nearest, ties to even, for numbers below 2^22; larger ones wrap.
#[inline(always)]
pub(super) fn nearest(number: f32) -> i32 {
    ((number + MAGIC).to_bits() & 0x007f_ffff).cast_signed() - 0x0040_0000
}

/// Returns `1 / number`, but 0 for 0.
#[inline(always)]
pub(super) fn reciprocal(number: f32) -> f32 {
    if number == 0.0 { 0.0 } else { 1.0 / number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_where_the_reference_sends_them() {
        for (number, away, even) in [
            (0.5, 1, 0),
            (-0.5, -1, 0),
            (1.5, 2, 2),
            (2.5, 3, 2),
            (-2.5, -3, -2),
            (0.499_999_97, 0, 0),
            (126.5, 127, 126),
            (-0.0, 0, 0),
        ] {
            assert_eq!((away_from_zero(number), nearest(number)), (away, even), "{number}");
        }
        assert_eq!([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e10].map(truncate), [i32::MIN; 4]);
    }
}
