//! Rotary position embedding of heads in memory.

use architectures::HeadLayout;

/// Rotates the heads of one token, or their rotated parts: pairs of elements of each by the angles of its position.
///
/// `heads` is `[heads, 2 · angles]`; a pair is `(i, i + angles)` or `(2i, 2i + 1)`, as the layout says.
pub(crate) fn rotate(heads: &mut [f32], cosines: &[f32], sines: &[f32], layout: HeadLayout) {
    let half = cosines.len();
    for head in heads.chunks_exact_mut(2 * half) {
        match layout {
            HeadLayout::Half => {
                let (first, second) = head.split_at_mut(half);
                let angles = cosines.iter().zip(sines);
                for ((a, b), angle) in first.iter_mut().zip(second).zip(angles) {
                    turn(a, b, angle);
                }
            }
            HeadLayout::Interleaved => {
                for (pair, angle) in head.chunks_exact_mut(2).zip(cosines.iter().zip(sines)) {
                    if let [a, b] = pair {
                        turn(a, b, angle);
                    }
                }
            }
        }
    }
}

fn turn(a: &mut f32, b: &mut f32, (cosine, sine): (&f32, &f32)) {
    (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_pairs() {
        // A quarter turn of the first pair, none of the second.
        let (cosines, sines) = ([0.0, 1.0], [1.0, 0.0]);
        let mut heads = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rotate(&mut heads, &cosines, &sines, HeadLayout::Half);
        assert_eq!(heads, vec![-3.0, 2.0, 1.0, 4.0, -7.0, 6.0, 5.0, 8.0]);
        let mut heads = vec![1.0, 2.0, 3.0, 4.0];
        rotate(&mut heads, &cosines, &sines, HeadLayout::Interleaved);
        assert_eq!(heads, vec![-2.0, 1.0, 3.0, 4.0]);
    }
}
