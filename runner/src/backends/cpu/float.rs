//! Float dot products.
#![expect(unsafe_code, reason = "SIMD")]

use std::cell::RefCell;
use std::thread::LocalKey;

thread_local!(static FIRST: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
thread_local!(static SECOND: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });

/// Gives a buffer of `length` that each thread has once.
pub(super) fn with_buffer(length: usize, work: impl FnOnce(&mut [f32])) {
    with(&FIRST, length, work);
}

/// Gives another buffer of `length` that each thread has once.
pub(super) fn with_second_buffer(length: usize, work: impl FnOnce(&mut [f32])) {
    with(&SECOND, length, work);
}

fn with(buffer: &'static LocalKey<RefCell<Vec<f32>>>, length: usize, work: impl FnOnce(&mut [f32])) {
    buffer.with_borrow_mut(|buffer| {
        grow(buffer, length);
        work(&mut buffer[..length]);
    });
}

/// Makes room: at once for more, because what is asked for grows with the length of a sequence.
fn grow(buffer: &mut Vec<f32>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length.next_power_of_two().max(1 << 12), 0.0);
    }
}

/// `out[i] = Σ a[k] · x[i, k]` for rows of x.
pub(super) fn dots(a: &[f32], x: &[f32], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x.chunks_exact(a.len())) {
        *out = dot(a, x);
    }
}

/// `Σ a[i] · b[i]` over the length of the shorter.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if super::instructions::has_avx2() {
        // SAFETY: the features were detected.
        return unsafe { dot_avx2(a, b) };
    }
    dot_generic(a, b)
}

/// Sums in eight lanes, which every compiler turns into whatever vectors there are.
fn dot_generic(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn dot_avx2(a: &[f32], b: &[f32]) -> f32 {
    use std::arch::x86_64::{_mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps};
    const STEP: usize = 32;
    let length = a.len().min(b.len());
    let mut sums = [_mm256_setzero_ps(); 4];
    let whole = length / STEP * STEP;
    for at in (0..whole).step_by(STEP) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            let at = at + lane * 8;
            // SAFETY: eight elements from `at` on are within both slices, as `at + 8 <= whole <= length`.
            unsafe {
                *sum = _mm256_fmadd_ps(_mm256_loadu_ps(a.as_ptr().add(at)), _mm256_loadu_ps(b.as_ptr().add(at)), *sum);
            }
        }
    }
    let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
    let mut lanes = [0.0f32; 8];
    // SAFETY: the array has room for eight elements.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
    lanes.iter().sum::<f32>() + dot_generic(&a[whole..length], &b[whole..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_double_precision() {
        for length in [0, 1, 7, 8, 31, 32, 33, 64, 100, 577] {
            let a: Vec<f32> = (0..length).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
            let b: Vec<f32> = (0..length).map(|i| ((i * 53 % 97) as f32 - 48.0) / 13.0).collect();
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            for (name, got) in [("dispatched", dot(&a, &b)), ("generic", dot_generic(&a, &b))] {
                assert!((f64::from(got) - exact).abs() < 1e-2, "{name} {length}: {got} {exact}");
            }
        }
    }
}
