//! How the reference turns numbers into codes, also where C leaves open what happens.

/// Towards zero; the smallest integer where the number fits into none, as x86 does it.
#[inline(always)]
pub(super) fn truncate(number: f32) -> i32 {
    /// 2^31.
    const BEYOND: f32 = 2_147_483_648.0;
    if number < BEYOND { number as i32 } else { i32::MIN }
}

/// To the nearest, ties away from zero: C's `roundf`.
#[inline(always)]
pub(super) fn away_from_zero(number: f32) -> i32 {
    // The float32 below one half: with one half itself, 0.49999997 would become 1.
    truncate(number + 0.499_999_97_f32.copysign(number))
}

/// Added to a number of less than 2^22 it leaves the nearest integer in the mantissa, ties to even.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// To the nearest, ties to even, for numbers of less than 2^22; others wrap.
#[inline(always)]
pub(super) fn nearest(number: f32) -> i32 {
    ((number + MAGIC).to_bits() & 0x007f_ffff).cast_signed() - 0x0040_0000
}

/// `1 / number`, but 0 for 0.
#[inline(always)]
pub(super) fn reciprocal(number: f32) -> f32 {
    if number == 0.0 { 0.0 } else { 1.0 / number }
}

/// The largest magnitude; NaNs do not count.
#[inline(always)]
pub(super) fn largest_magnitude<const N: usize>(numbers: &[f32; N]) -> f32 {
    let mut lanes = [0.0_f32; 8];
    for eight in numbers.as_chunks::<8>().0 {
        for (lane, number) in lanes.iter_mut().zip(eight) {
            let magnitude = number.abs();
            *lane = if magnitude > *lane { magnitude } else { *lane };
        }
    }
    lanes.into_iter().fold(0.0, |largest, lane| if lane > largest { lane } else { largest })
}

/// The number of the largest magnitude, the first of them; 0 where there is none but zeros and NaNs.
#[inline(always)]
pub(super) fn most_extreme<const N: usize>(numbers: &[f32; N]) -> f32 {
    let (least, greatest) = extremes(numbers);
    if greatest > -least && greatest > 0.0 {
        greatest
    } else if greatest < -least && least < 0.0 {
        least
    } else {
        let largest = largest_magnitude(numbers);
        if largest > 0.0 { first(numbers, |number| number.abs() == largest) } else { 0.0 }
    }
}

/// The least and the greatest number, of equal ones the first; plus and minus the largest float32 bound them.
#[inline(always)]
pub(super) fn least_and_greatest<const N: usize>(numbers: &[f32; N]) -> (f32, f32) {
    let (least, greatest) = extremes(numbers);
    // Zeros of both signs are equal, but not in the scale that is stored.
    let of_first_zero = |extreme: f32| if extreme == 0.0 { first(numbers, |number| number == 0.0) } else { extreme };
    (of_first_zero(least), of_first_zero(greatest))
}

#[inline(always)]
fn extremes<const N: usize>(numbers: &[f32; N]) -> (f32, f32) {
    let mut least = [f32::MAX; 8];
    let mut greatest = [-f32::MAX; 8];
    for eight in numbers.as_chunks::<8>().0 {
        for i in 0..8 {
            least[i] = if eight[i] < least[i] { eight[i] } else { least[i] };
            greatest[i] = if eight[i] > greatest[i] { eight[i] } else { greatest[i] };
        }
    }
    let least = least.into_iter().fold(f32::MAX, |least, lane| if lane < least { lane } else { least });
    (least, greatest.into_iter().fold(-f32::MAX, |greatest, lane| if lane > greatest { lane } else { greatest }))
}

fn first<const N: usize>(numbers: &[f32; N], wanted: impl Fn(f32) -> bool) -> f32 {
    numbers.iter().copied().find(|number| wanted(*number)).unwrap_or(0.0)
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

    #[test]
    fn the_first_of_equals_is_taken() {
        let mut numbers = [0.25; 16];
        (numbers[3], numbers[5]) = (-1.0, 1.0);
        assert_eq!(most_extreme(&numbers).to_bits(), (-1.0_f32).to_bits());
        (numbers[3], numbers[5]) = (1.0, -1.0);
        assert_eq!(most_extreme(&numbers).to_bits(), 1.0_f32.to_bits());
        let mut zeros = [0.0; 16];
        zeros[0] = -0.0;
        let (least, greatest) = least_and_greatest(&zeros);
        assert!(least.is_sign_negative() && greatest.is_sign_negative());
        assert_eq!(most_extreme(&zeros).to_bits(), 0);
    }
}
