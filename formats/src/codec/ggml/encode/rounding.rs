//! Conversion of numbers to codes as in the reference, including cases that C leaves undefined.

use super::lanes::Lanes;

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

/// Returns the largest magnitude of the numbers, whose count is a multiple of eight; NaN is
/// ignored.
#[inline(always)]
pub(super) fn largest_magnitude<L: Lanes, const N: usize>(numbers: &[f32; N]) -> f32 {
    let mut largest = L::splat(0.0);
    for eight in numbers.as_chunks::<8>().0 {
        largest = L::new(*eight).abs().max(largest);
    }
    greatest_of(largest.numbers())
}

#[inline(always)]
fn greatest_of(mut lanes: [f32; 8]) -> f32 {
    for width in [4, 2, 1] {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
    }
    lanes[0]
}

/// Returns the first number with the largest magnitude; 0 if there are only zeros and NaNs.
#[inline(always)]
pub(super) fn most_extreme<L: Lanes, const N: usize>(numbers: &[f32; N]) -> f32 {
    let (least, greatest) = extremes::<L, N>(numbers);
    if greatest > -least && greatest > 0.0 {
        greatest
    } else if greatest < -least && least < 0.0 {
        least
    } else {
        let largest = largest_magnitude::<L, N>(numbers);
        if largest > 0.0 { first(numbers, |number| number.abs() >= largest) } else { 0.0 }
    }
}

/// Returns the smallest and the largest number; of equal ones, the first. They are bounded by plus
/// and minus the largest float32.
#[inline(always)]
pub(super) fn least_and_greatest<L: Lanes, const N: usize>(numbers: &[f32; N]) -> (f32, f32) {
    let (least, greatest) = extremes::<L, N>(numbers);
    // Zeros of both signs compare equal, but differ in the stored scale.
    let of_first_zero = |extreme: f32| if extreme == 0.0 { first(numbers, |number| number == 0.0) } else { extreme };
    (of_first_zero(least), of_first_zero(greatest))
}

#[inline(always)]
fn extremes<L: Lanes, const N: usize>(numbers: &[f32; N]) -> (f32, f32) {
    let mut least = L::splat(f32::MAX);
    let mut greatest = L::splat(-f32::MAX);
    for eight in numbers.as_chunks::<8>().0 {
        least = L::new(*eight).min(least);
        greatest = L::new(*eight).max(greatest);
    }
    (-greatest_of(least.numbers().map(|number| -number)), greatest_of(greatest.numbers()))
}

fn first<const N: usize>(numbers: &[f32; N], wanted: impl Fn(f32) -> bool) -> f32 {
    numbers.iter().copied().find(|number| wanted(*number)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
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

    #[test]
    fn the_first_of_equals_is_taken() {
        let mut numbers = [0.25; 16];
        (numbers[3], numbers[5]) = (-1.0, 1.0);
        assert_eq!(most_extreme::<Portable, 16>(&numbers).to_bits(), (-1.0_f32).to_bits());
        (numbers[3], numbers[5]) = (1.0, -1.0);
        assert_eq!(most_extreme::<Portable, 16>(&numbers).to_bits(), 1.0_f32.to_bits());
        let mut zeros = [0.0; 16];
        zeros[0] = -0.0;
        let (least, greatest) = least_and_greatest::<Portable, 16>(&zeros);
        assert!(least.is_sign_negative() && greatest.is_sign_negative());
        assert_eq!(most_extreme::<Portable, 16>(&zeros).to_bits(), 0);
    }
}
