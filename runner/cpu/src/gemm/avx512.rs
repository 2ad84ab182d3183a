//! Products of small float matrices with AVX-512, in tiles of eight rows and two vectors of
//! columns. A mask limits the last columns.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::needless_range_loop, reason = "the place in several arrays")]

use std::arch::x86_64::{
    __mmask16, _mm512_add_ps, _mm512_fmadd_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps,
};

use super::{Slice, SliceMut};

/// Number of rows of `a` in a tile.
const ROWS: usize = 8;
/// Number of columns in a vector.
const LANES: usize = 16;
/// Number of vectors in a tile.
const VECTORS: usize = 2;

/// See [`super::add_product`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_product([m, n, depth]: [usize; 3], a: Slice<'_>, b: Slice<'_>, c: &mut SliceMut<'_>) {
    if m == 0 || n == 0 || depth == 0 {
        return;
    }
    assert!(a.numbers.len() >= (m - 1) * a.stride + depth && b.numbers.len() >= (depth - 1) * b.stride + n);
    assert!(c.numbers.len() >= (m - 1) * c.stride + n && c.stride >= n);
    for column in (0..n).step_by(VECTORS * LANES) {
        let left = n - column;
        // A mask bit is 1 for each existing column.
        let masks = [mask(left), mask(left.saturating_sub(LANES))];
        let mut row = 0;
        while row + ROWS <= m {
            tile::<ROWS>(depth, a, b, c, ([row, column], masks));
            row += ROWS;
        }
        while row + 2 <= m {
            tile::<2>(depth, a, b, c, ([row, column], masks));
            row += 2;
        }
        if row < m {
            tile::<1>(depth, a, b, c, ([row, column], masks));
        }
    }
}

fn mask(columns: usize) -> __mmask16 {
    if columns >= LANES { __mmask16::MAX } else { (1 << columns) - 1 }
}

/// Computes R rows and the columns of the masks. The caller has asserted that they are in bounds.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn tile<const R: usize>(
    depth: usize,
    a: Slice<'_>,
    b: Slice<'_>,
    c: &mut SliceMut<'_>,
    ([row, column], masks): ([usize; 2], [__mmask16; VECTORS]),
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; R];
    for k in 0..depth {
        let mut own = [_mm512_setzero_ps(); VECTORS];
        for vector in 0..VECTORS {
            // SAFETY: a row of `b` has the columns of the mask from there on; masked-out columns
            // are not read.
            own[vector] = unsafe {
                let from = b.numbers.as_ptr().wrapping_add(k * b.stride + column + vector * LANES);
                _mm512_maskz_loadu_ps(masks[vector], from)
            };
        }
        for i in 0..R {
            // SAFETY: the caller has asserted that `a` has this row and column.
            let x = _mm512_set1_ps(unsafe { *a.numbers.get_unchecked((row + i) * a.stride + k) });
            for vector in 0..VECTORS {
                sums[i][vector] = _mm512_fmadd_ps(x, own[vector], sums[i][vector]);
            }
        }
    }
    for i in 0..R {
        for vector in 0..VECTORS {
            let place = c.numbers.as_mut_ptr().wrapping_add((row + i) * c.stride + column + vector * LANES);
            // SAFETY: a row of `c` has the columns of the mask from there on; masked-out columns
            // are neither read nor written.
            unsafe {
                let before = _mm512_maskz_loadu_ps(masks[vector], place);
                _mm512_mask_storeu_ps(place, masks[vector], _mm512_add_ps(before, sums[i][vector]));
            }
        }
    }
}
