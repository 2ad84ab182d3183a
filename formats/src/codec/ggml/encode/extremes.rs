//! Smallest and largest numbers of a block.

use super::lanes::Lanes;

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

#[inline(always)]
fn greatest_of(mut lanes: [f32; 8]) -> f32 {
    for width in [4, 2, 1] {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
    }
    lanes[0]
}

fn first<const N: usize>(numbers: &[f32; N], wanted: impl Fn(f32) -> bool) -> f32 {
    numbers.iter().copied().find(|number| wanted(*number)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
    use super::*;

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
