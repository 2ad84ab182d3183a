//! Products of small float matrices, `c += a · b`, in row-major order.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "instructions that were looked for"))]
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::instructions::Instructions;

/// Number of rows of `a` in a tile.
const ROWS: usize = 4;
/// Number of columns of `b` in a tile.
const COLUMNS: usize = 16;

/// A row-major matrix in a slice.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    /// Elements, row by row.
    pub numbers: &'a [f32],
    /// Distance between rows, in elements.
    pub stride: usize,
}

/// A row-major matrix in a slice that is written.
pub struct SliceMut<'a> {
    /// Elements, row by row.
    pub numbers: &'a mut [f32],
    /// Distance between rows, in elements.
    pub stride: usize,
}

/// Adds a product: `c[i, j] += Σ a[i, k] · b[k, j]`. The sizes are `m` rows, `n` columns and
/// `depth` terms of the sum.
pub fn add_product(
    instructions: Instructions,
    [m, n, depth]: [usize; 3],
    a: Slice<'_>,
    b: Slice<'_>,
    mut c: SliceMut<'_>,
) {
    #[cfg(target_arch = "x86_64")]
    if instructions.has_avx512() {
        // SAFETY: the features were detected.
        return unsafe { avx512::add_product([m, n, depth], a, b, &mut c) };
    }
    #[cfg(target_arch = "x86_64")]
    if instructions.has_avx2() {
        // SAFETY: the features were detected.
        return unsafe { add_product_avx2([m, n, depth], a, b, &mut c) };
    }
    let _ = instructions;
    product::<false>([m, n, depth], a, b, &mut c);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_product_avx2(sizes: [usize; 3], a: Slice<'_>, b: Slice<'_>, c: &mut SliceMut<'_>) {
    product::<true>(sizes, a, b, c);
}

#[inline(always)]
fn product<const FUSED: bool>([m, n, depth]: [usize; 3], a: Slice<'_>, b: Slice<'_>, c: &mut SliceMut<'_>) {
    let wide = n / COLUMNS * COLUMNS;
    let mut row = 0;
    while row + ROWS <= m {
        for column in (0..wide).step_by(COLUMNS) {
            tile::<FUSED, ROWS>(depth, a, b, c, [row, column]);
        }
        row += ROWS;
    }
    for row in row..m {
        for column in (0..wide).step_by(COLUMNS) {
            tile::<FUSED, 1>(depth, a, b, c, [row, column]);
        }
    }
    for row in 0..m {
        for column in wide..n {
            let a = &a.numbers[row * a.stride..][..depth];
            let b = b.numbers[column..].iter().step_by(b.stride);
            // Rounds as in a tile, because the width decides which columns are computed here.
            let add = |sum: f32, (a, b): (&f32, &f32)| if FUSED { a.mul_add(*b, sum) } else { a * b + sum };
            c.numbers[row * c.stride + column] += a.iter().zip(b).fold(0.0, add);
        }
    }
}

#[inline(always)]
fn tile<const FUSED: bool, const R: usize>(
    depth: usize,
    a: Slice<'_>,
    b: Slice<'_>,
    c: &mut SliceMut<'_>,
    [row, column]: [usize; 2],
) {
    let mut sums = [[0.0f32; COLUMNS]; R];
    let rows: [&[f32]; R] = std::array::from_fn(|i| &a.numbers[(row + i) * a.stride..][..depth]);
    #[expect(clippy::needless_range_loop, reason = "`k` is the place in every row")]
    for k in 0..depth {
        let Some(b) = b.numbers[k * b.stride + column..].first_chunk::<COLUMNS>() else { return };
        for i in 0..R {
            let x = rows[i][k];
            for j in 0..COLUMNS {
                sums[i][j] = if FUSED { x.mul_add(b[j], sums[i][j]) } else { x * b[j] + sums[i][j] };
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (c, sum) in c.numbers[(row + i) * c.stride + column..][..COLUMNS].iter_mut().zip(sums) {
            *c += sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_double_precision() {
        for (m, n, depth) in [(1, 1, 1), (4, 16, 3), (5, 33, 64), (9, 48, 40), (3, 7, 100), (17, 70, 33)] {
            let numbers = |count: usize, seed: usize| -> Vec<f32> {
                (0..count).map(|i| (((i + seed) * 37 % 101) as f32 - 50.0) / 40.0).collect()
            };
            let (a, b) = (numbers(m * (depth + 2), 1), numbers(depth * (n + 3), 5));
            for instructions in Instructions::available() {
                let mut c = vec![1.0; m * n];
                let slices = || (Slice { numbers: &a, stride: depth + 2 }, Slice { numbers: &b, stride: n + 3 });
                let (x, y) = slices();
                add_product(instructions, [m, n, depth], x, y, SliceMut { numbers: &mut c, stride: n });
                for i in 0..m {
                    for j in 0..n {
                        let of = |k: usize| f64::from(a[i * (depth + 2) + k]) * f64::from(b[k * (n + 3) + j]);
                        let exact: f64 = 1.0 + (0..depth).map(of).sum::<f64>();
                        let got = c[i * n + j];
                        assert!(
                            (f64::from(got) - exact).abs() < 1e-4,
                            "{instructions} {m} {n} {depth}: {got} is not {exact}"
                        );
                    }
                }
            }
        }
    }
}
