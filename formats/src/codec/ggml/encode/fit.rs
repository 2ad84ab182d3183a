//! Searches for the scale of a sub-block: the candidate with the least weighted error.
//!
//! Eight sub-blocks are searched in parallel. Sums are computed in the order of the elements,
//! because every rounding counts. Source of the algorithms: `make_qkx2_quants`, `make_qx_quants`,
//! `make_q3_quants` in `ggml-quants.c`.

use super::lanes::Lanes;

/// A sub-block whose largest magnitude is below this counts as zero.
pub(super) const ZERO: f32 = 1e-15;

/// Transposes eight sub-blocks: item `i` of the result contains element `i` of each.
#[inline(always)]
pub(super) fn side_by_side<L: Lanes, const N: usize>(sub_blocks: &[[f32; N]; 8]) -> [L; N] {
    let mut elements = [L::splat(0.0); N];
    for (i, element) in elements.iter_mut().enumerate() {
        let mut lanes = [0.0; 8];
        for (lane, sub_block) in lanes.iter_mut().zip(sub_blocks) {
            *lane = sub_block[i];
        }
        *element = L::new(lanes);
    }
    elements
}

/// The candidates of [`above_minimum`]: scales for `levels + first + step · i` levels, for `i` up
/// to `steps`.
#[derive(Clone, Copy)]
pub(super) struct Candidates {
    /// The largest code.
    pub(super) levels: f32,
    /// Offset of the first candidate from `levels`.
    pub(super) first: f32,
    /// Distance between candidates.
    pub(super) step: f32,
    /// Index of the last candidate.
    pub(super) steps: u8,
}

/// Result of a search for eight sub-blocks.
#[derive(Clone, Copy)]
pub(super) struct Fit {
    /// Value of one step of the code.
    pub(super) scale: [f32; 8],
    /// Subtracted minimum: minus the value of code 0.
    pub(super) minimum: [f32; 8],
    /// Inverse scale of the search, whose codes are `(number - base) · inverse`.
    pub(super) inverse: [f32; 8],
    /// See `inverse`.
    pub(super) base: [f32; 8],
}

/// Fits numbers as `scale · code - minimum`, with codes from 0. The codes of each candidate
/// determine the scale and minimum with the least squared error. The candidate with the least error
/// according to `measure` is used.
#[inline(always)]
pub(super) fn above_minimum<L: Lanes, const N: usize>(
    numbers: &[L; N],
    weights: &[L; N],
    candidates: Candidates,
    measure: impl Fn(L) -> L,
) -> Fit {
    let zero = L::splat(0.0);
    let levels = L::splat(candidates.levels);
    let range = Range::of(numbers, weights);
    let mut minimum = range.floor();
    let mut inverse = levels.div(range.greatest.sub(minimum));
    let mut base = minimum;
    let mut scale = L::splat(1.0).div(inverse);
    let mut least_error = zero;
    for i in 0..N {
        let code = inverse.mul(numbers[i].sub(minimum)).nearest().clamp(zero, levels);
        let difference = scale.mul(code).add(minimum).sub(numbers[i]);
        least_error = least_error.add(weights[i].mul(measure(difference)));
    }
    for i in 0..=candidates.steps {
        let target = candidates.first + candidates.step * f32::from(i) + candidates.levels;
        let candidate = L::splat(target).div(range.greatest.sub(minimum));
        let (codes, sums) = Sums::of(numbers, weights, minimum, candidate, levels);
        let (solved, new_scale, new_minimum) = sums.solve(&range);
        let mut error = zero;
        for i in 0..N {
            let difference = new_scale.mul(codes[i]).add(new_minimum).sub(numbers[i]);
            error = error.add(weights[i].mul(measure(difference)));
        }
        let better = L::and(solved, error.less(least_error));
        base = L::select(better, minimum, base);
        inverse = L::select(better, candidate, inverse);
        least_error = L::select(better, error, least_error);
        scale = L::select(better, new_scale, scale);
        minimum = L::select(better, new_minimum, minimum);
    }
    let minimum = range.unless_constant(minimum, range.floor());
    Fit {
        scale: range.unless_constant(scale, zero).numbers(),
        minimum: minimum.numbers().map(|minimum| -minimum),
        inverse: range.unless_constant(inverse, zero).numbers(),
        base: base.numbers(),
    }
}

/// Values that are the same for all candidates.
struct Range<L> {
    least: L,
    greatest: L,
    /// Sum of the weights.
    weights: L,
    /// Sum of the weighted numbers.
    numbers: L,
}

impl<L: Lanes> Range<L> {
    #[inline(always)]
    fn of<const N: usize>(numbers: &[L; N], weights: &[L; N]) -> Self {
        let mut range =
            Self { least: numbers[0], greatest: numbers[0], weights: weights[0], numbers: weights[0].mul(numbers[0]) };
        for i in 1..N {
            range.least = numbers[i].min(range.least);
            range.greatest = numbers[i].max(range.greatest);
            range.weights = range.weights.add(weights[i]);
            range.numbers = range.numbers.add(weights[i].mul(numbers[i]));
        }
        range
    }

    /// Returns the smallest number, or 0 if it is positive.
    #[inline(always)]
    fn floor(&self) -> L {
        L::splat(0.0).min(self.least)
    }

    /// Returns `found`, or `constant` for sub-blocks whose numbers are all equal: their scale and
    /// codes are 0.
    #[inline(always)]
    fn unless_constant(&self, found: L, constant: L) -> L {
        let (floor, greatest) = (self.floor(), self.greatest);
        L::select(floor.less(greatest), found, L::select(greatest.less(floor), found, constant))
    }
}

/// Weighted sums over the codes of a candidate.
struct Sums<L> {
    codes: L,
    squares: L,
    products: L,
}

impl<L: Lanes> Sums<L> {
    /// Computes the codes for an inverse scale and a minimum, and their sums.
    #[inline(always)]
    fn of<const N: usize>(numbers: &[L; N], weights: &[L; N], minimum: L, inverse: L, levels: L) -> ([L; N], Self) {
        let zero = L::splat(0.0);
        let mut codes = [zero; N];
        let mut sums = Self { codes: zero, squares: zero, products: zero };
        for i in 0..N {
            let code = inverse.mul(numbers[i].sub(minimum)).nearest().clamp(zero, levels);
            codes[i] = code;
            let weighted = weights[i].mul(code);
            sums.codes = sums.codes.add(weighted);
            sums.squares = sums.squares.add(weighted.mul(code));
            sums.products = sums.products.add(weighted.mul(numbers[i]));
        }
        (codes, sums)
    }

    /// Solves for scale and minimum, which is at most 0; the mask marks the lanes that have a
    /// solution.
    #[inline(always)]
    fn solve(&self, range: &Range<L>) -> (L::Mask, L, L) {
        let zero = L::splat(0.0);
        let determinant = range.weights.mul(self.squares).sub(self.codes.mul(self.codes));
        let scale = range.weights.mul(self.products).sub(range.numbers.mul(self.codes)).div(determinant);
        let minimum = self.squares.mul(range.numbers).sub(self.codes.mul(self.products)).div(determinant);
        let above = zero.less(minimum);
        let scale = L::select(above, self.products.div(self.squares), scale);
        (zero.less(determinant), scale, L::select(above, zero, minimum))
    }
}

/// Returns the largest magnitudes, and the numbers that have them; of equal ones, the first.
#[inline(always)]
pub(super) fn most_extreme<L: Lanes, const N: usize>(numbers: &[L; N]) -> (L, L) {
    let mut magnitude = L::splat(0.0);
    let mut extreme = L::splat(0.0);
    for number in numbers {
        let larger = magnitude.less(number.abs());
        magnitude = L::select(larger, number.abs(), magnitude);
        extreme = L::select(larger, *number, extreme);
    }
    (magnitude, extreme)
}

/// Fits numbers as `scale · code` with codes from `-levels` to `levels - 1`, weighted by their
/// squares. Returns the scales, and the inverse scales of the search. Scales are 0 for sub-blocks
/// that count as [`ZERO`].
#[inline(always)]
pub(super) fn symmetric<L: Lanes, const N: usize>(numbers: &[L; N], levels: f32) -> ([f32; 8], [f32; 8]) {
    let zero = L::splat(0.0);
    let (magnitude, extreme) = most_extreme(numbers);
    let mut inverse = L::splat(-levels).div(extreme);
    let (products, squares) = sums_around_zero(numbers, inverse, levels);
    let mut scale = L::select(zero.less(squares), products.div(squares), zero);
    let mut best = scale.mul(products);
    for candidate in (-9i8..=9).filter(|candidate| *candidate != 0) {
        let target = -(levels + 0.1 * f32::from(candidate));
        let candidate = L::splat(target).div(extreme);
        let (products, squares) = sums_around_zero(numbers, candidate, levels);
        let better = L::and(zero.less(squares), best.mul(squares).less(products.mul(products)));
        inverse = L::select(better, candidate, inverse);
        scale = L::select(better, products.div(squares), scale);
        best = L::select(better, scale.mul(products), best);
    }
    let scale = L::select(magnitude.less(L::splat(ZERO)), zero, scale);
    (scale.numbers(), inverse.numbers())
}

/// Returns the weighted sums of `number · code` and of squared codes.
#[inline(always)]
fn sums_around_zero<L: Lanes, const N: usize>(numbers: &[L; N], inverse: L, levels: f32) -> (L, L) {
    let (least, greatest) = (L::splat(-levels), L::splat(levels - 1.0));
    let (mut products, mut squares) = (L::splat(0.0), L::splat(0.0));
    for number in numbers {
        let code = inverse.mul(*number).nearest().clamp(least, greatest);
        let weight = number.mul(*number);
        products = products.add(weight.mul(*number).mul(code));
        squares = squares.add(weight.mul(code).mul(code));
    }
    (products, squares)
}

/// Fits numbers as `scale · code` with codes from `-levels` to `levels - 1`, weighted by their
/// squares. Returns scales and codes. Codes are changed one at a time, in at most five rounds, as
/// long as the error decreases. Scales are 0 for sub-blocks that count as [`ZERO`].
#[inline(always)]
pub(super) fn step_by_step<L: Lanes, const N: usize>(numbers: &[L; N], levels: f32) -> ([f32; 8], [[f32; 8]; N]) {
    let zero = L::splat(0.0);
    let (least, greatest) = (L::splat(-levels), L::splat(levels - 1.0));
    let (magnitude, extreme) = most_extreme(numbers);
    let inverse = least.div(extreme);
    let mut codes = [zero; N];
    let (mut products, mut squares) = (zero, zero);
    for i in 0..N {
        codes[i] = inverse.mul(numbers[i]).nearest().clamp(least, greatest);
        let weight = numbers[i].mul(numbers[i]);
        products = products.add(weight.mul(numbers[i]).mul(codes[i]));
        squares = squares.add(weight.mul(codes[i]).mul(codes[i]));
    }
    for _ in 0..5 {
        let mut unchanged = true;
        for i in 0..N {
            let number = numbers[i];
            let weight = number.mul(number);
            let other_products = products.sub(weight.mul(number).mul(codes[i]));
            let other_squares = squares.sub(weight.mul(codes[i]).mul(codes[i]));
            let code = number.mul(other_squares).div(other_products).nearest().clamp(least, greatest);
            let new_products = other_products.add(weight.mul(number).mul(code));
            let new_squares = other_squares.add(weight.mul(code).mul(code));
            let gain = products.mul(products).mul(new_squares).less(new_products.mul(new_products).mul(squares));
            let different = zero.less(code.sub(codes[i]).abs());
            let better = L::and(L::and(zero.less(other_products), different), L::and(zero.less(new_squares), gain));
            unchanged &= L::none(better);
            codes[i] = L::select(better, code, codes[i]);
            products = L::select(better, new_products, products);
            squares = L::select(better, new_squares, squares);
        }
        if unchanged {
            break;
        }
    }
    let scale = L::select(zero.less(squares), products.div(squares), zero);
    let scale = L::select(magnitude.less(L::splat(ZERO)), zero, scale);
    let mut found = [[0.0; 8]; N];
    for (found, code) in found.iter_mut().zip(codes) {
        *found = code.numbers();
    }
    (scale.numbers(), found)
}
