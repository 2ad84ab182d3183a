//! Work on the rows of a matrix, on all cores.
//!
//! On candle's pool: its threads spin for a moment before they sleep, which a decode step with hundreds of small products
//! needs, and sharing it means that they never compete with candle's own operations.
#![expect(unsafe_code, reason = "threads write rows of one slice")]

use candle_core::utils::barrier_pool;

/// Calls `each` with every row of `out`, `width` elements each, in any order and from several threads.
pub(super) fn for_rows(out: &mut [f32], width: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
    assert!(width > 0 && out.len().is_multiple_of(width), "whole rows");
    let rows = out.len() / width;
    let base = Base(out.as_mut_ptr());
    barrier_pool().execute_chunked(rows, |range| {
        for row in range {
            // SAFETY: `row` is below `rows`, so the row lies within `out`, which is borrowed until the pool is done; the
            // pool gives each row to exactly one thread, so no two slices overlap.
            let row_slice = unsafe { std::slice::from_raw_parts_mut(base.get().add(row * width), width) };
            each(row, row_slice);
        }
    });
}

/// Where a slice begins, for several threads.
struct Base(*mut f32);

impl Base {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

// SAFETY: the pointer is only used as `for_rows` says: each thread with rows of its own.
unsafe impl Sync for Base {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_once() {
        for (rows, width) in [(0, 3), (1, 1), (7, 5), (1000, 2)] {
            let mut out = vec![0.0; rows * width];
            for_rows(&mut out, width, |row, line| line.iter_mut().for_each(|value| *value += row as f32 + 1.0));
            for (at, value) in out.iter().enumerate() {
                assert!((*value - (at / width + 1) as f32).abs() < 0.5);
            }
        }
    }
}
