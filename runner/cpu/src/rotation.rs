//! Rotary position embedding of heads in memory.

use architectures::HeadLayout;

/// Applies RoPE to the heads of one token, or to their rotary parts: rotates pairs of elements by
/// the angles of the token's position.
///
/// `heads` is `[heads, 2 · angles]`. The layout decides whether a pair is `(i, i + angles)` or
/// `(2i, 2i + 1)`.
pub fn rotate(heads: &mut [f32], cosines: &[f32], sines: &[f32], layout: HeadLayout) {
    let half = cosines.len();
    for head in heads.chunks_exact_mut(2 * half) {
        match layout {
            HeadLayout::Half => {
                let (first, second) = head.split_at_mut(half);
                let angles = cosines.iter().zip(sines);
                for ((a, b), angle) in first.iter_mut().zip(second).zip(angles) {
                    rotate_pair(a, b, angle);
                }
            }
            HeadLayout::Interleaved => {
                for (pair, angle) in head.chunks_exact_mut(2).zip(cosines.iter().zip(sines)) {
                    if let [a, b] = pair {
                        rotate_pair(a, b, angle);
                    }
                }
            }
        }
    }
}

fn rotate_pair(a: &mut f32, b: &mut f32, (cosine, sine): (&f32, &f32)) {
    (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_pairs() {
        // A rotation by 90° for the first pair, by 0° for the second.
        let (cosines, sines) = ([0.0, 1.0], [1.0, 0.0]);
        let mut heads = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rotate(&mut heads, &cosines, &sines, HeadLayout::Half);
        assert_eq!(heads, vec![-3.0, 2.0, 1.0, 4.0, -7.0, 6.0, 5.0, 8.0]);
        let mut heads = vec![1.0, 2.0, 3.0, 4.0];
        rotate(&mut heads, &cosines, &sines, HeadLayout::Interleaved);
        assert_eq!(heads, vec![-2.0, 1.0, 3.0, 4.0]);
    }
}
