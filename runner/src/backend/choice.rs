//! Attention to a part of the positions, which an indexer chooses.

use super::{Backend, Span};

/// Queries of an indexer. Its keys are the last elements of the keys of attention.
#[derive(Debug)]
pub(crate) struct IndexQueries<'a, B: Backend> {
    /// `[tokens, heads · head_dim]`.
    pub(crate) queries: &'a B::Act,
    /// `[tokens, heads]`.
    pub(crate) weights: &'a B::Act,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// Number of positions that are chosen.
    pub(crate) count: usize,
}

/// The positions to which the tokens of a sequence attend.
#[derive(Debug)]
pub(crate) struct ChosenPositions {
    span: Span,
    /// Whether a token attends to a position: for each token, up to the last position of the span.
    chosen: Vec<bool>,
}

impl ChosenPositions {
    /// Creates the marks `[tokens, positions]`, which `fill` sets by [`choose`](Self::choose).
    pub(crate) fn new(span: Span, fill: impl FnOnce(&mut [bool])) -> Self {
        let mut chosen = vec![false; span.tokens * span.end()];
        fill(&mut chosen);
        Self { span, chosen }
    }

    /// Chooses the `count` positions with the greatest scores among the first `visible` ones, which
    /// a token sees. `scores` writes their scores; `chosen` are the marks of the token.
    pub(crate) fn choose(visible: usize, count: usize, scores: impl FnOnce(&mut [f32]), chosen: &mut [bool]) {
        if visible <= count {
            chosen[..visible].fill(true);
            return;
        }
        // Later positions of the span take part in the order, as in PyTorch.
        let mut own = vec![f32::NEG_INFINITY; chosen.len()];
        scores(&mut own[..visible]);
        let mut order: Vec<Scored> = own.into_iter().zip(0..).collect();
        greatest_first(&mut order, count);
        order[..count].iter().for_each(|&(_, position)| chosen[position] = true);
    }

    /// Sets the scores of positions that were not chosen to minus infinity: those of the token at
    /// `position`, from the position `first` on. Returns true if some of them were chosen.
    pub(crate) fn mask(&self, position: usize, first: usize, scores: &mut [f32]) -> bool {
        let token = position - self.span.position;
        let own = &self.chosen[token * self.span.end() + first..][..scores.len()];
        for (score, _) in scores.iter_mut().zip(own).filter(|(_, is_chosen)| !**is_chosen) {
            *score = f32::NEG_INFINITY;
        }
        own.contains(&true)
    }
}

/// A score and its position.
type Scored = (f32, usize);

fn is_greater(a: Scored, b: Scored) -> bool {
    a.0 > b.0
}

/// Moves the `count` greatest scores to the front.
///
/// Equal scores are common, because the score is 0 if no head has a positive product. Which of them
/// are chosen changes the output. This is the algorithm of `std::nth_element` in libstdc++, which
/// `PyTorch` uses on the CPU for up to `64 · count` positions, so that the choice for a text that
/// is computed at once is that of transformers. It depends on the number of positions that there
/// are, and so on the chunks in which a text is computed.
fn greatest_first(scores: &mut [Scored], count: usize) {
    let (mut first, mut end) = (0, scores.len());
    let nth = count - 1;
    let mut rounds = 2 * scores.len().max(1).ilog2();
    while end - first > 3 {
        if rounds == 0 {
            // Bounds the time for orders that always split off a few scores.
            scores[first..end].select_nth_unstable_by(nth - first, |a, b| b.0.total_cmp(&a.0));
            return;
        }
        rounds -= 1;
        let cut = partition(scores, first, end);
        if cut <= nth {
            first = cut;
        } else {
            end = cut;
        }
    }
    // A stable sort has the same result as the insertion sort of the algorithm.
    scores[first..end].sort_by(|a, b| b.0.total_cmp(&a.0));
}

/// Partitions a range by the median of three of its scores; returns where the second part begins.
fn partition(scores: &mut [Scored], first: usize, end: usize) -> usize {
    let (a, b, c) = (first + 1, first + (end - first) / 2, end - 1);
    let is_before = |x: usize, y: usize| is_greater(scores[x], scores[y]);
    let median = match (is_before(a, b), is_before(b, c), is_before(a, c)) {
        (true, true, _) | (false, false, false) => b,
        (true, false, true) | (false, true, false) => c,
        (true, false, false) | (false, _, true) => a,
    };
    scores.swap(first, median);
    let (mut low, mut high) = (first + 1, end);
    loop {
        while is_greater(scores[low], scores[first]) {
            low += 1;
        }
        high -= 1;
        while is_greater(scores[first], scores[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        scores.swap(low, high);
        low += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_scores_are_chosen() {
        let span = Span { first: 0, position: 1, tokens: 3, is_prompt: true };
        let scores = [0.5, -1.0, 0.25, 2.0];
        let chosen = ChosenPositions::new(span, |all| {
            for (token, row) in all.chunks_exact_mut(4).enumerate() {
                let fill = |own: &mut [f32]| own.copy_from_slice(&scores[..own.len()]);
                ChosenPositions::choose(span.position + token + 1, 2, fill, row);
            }
        });
        let of = |position: usize| {
            let mut row = vec![0.0; 4];
            assert!(chosen.mask(position, 0, &mut row));
            row.iter().map(|score| *score == 0.0).collect::<Vec<bool>>()
        };
        assert_eq!(of(1), [true, true, false, false], "all positions that there are");
        assert_eq!(of(2), [true, false, true, false]);
        assert_eq!(of(3), [true, false, false, true]);
        assert!(!chosen.mask(3, 1, &mut [0.0, 0.0]));
    }

    /// `torch.topk` of `PyTorch` 2.15.0 on the CPU, for scores with many zeros.
    #[test]
    fn equal_scores_are_chosen_as_pytorch_does() {
        for (count, scores, expected) in CASES {
            let mut order: Vec<Scored> = scores.iter().map(|score| f32::from(*score)).zip(0..).collect();
            greatest_first(&mut order, *count);
            let mut chosen: Vec<usize> = order[..*count].iter().map(|(_, position)| *position).collect();
            chosen.sort_unstable();
            assert_eq!(chosen, *expected, "{scores:?}");
        }
    }

    const CASES: &[(usize, &[i8], &[usize])] = &[
        (2, &[0, 1, 0, -1, 3], &[1, 4]),
        (7, &[0, 0, 0, 0, -1, 1, 0, 0, 2, 1, 0, 0], &[5, 6, 7, 8, 9, 10, 11]),
        (
            16,
            &[1, 0, 0, 1, 1, 0, 0, 1, 1, 2, 0, 2, -1, 0, 0, 0, 3, 1, 0, 1, 0, 1, 1, 0],
            &[0, 1, 3, 4, 7, 8, 9, 11, 16, 17, 18, 19, 20, 21, 22, 23],
        ),
        (
            16,
            &[
                -1, -1, 1, -1, 3, 0, 0, 1, 1, 0, 0, 0, 3, 1, 3, 2, 0, 0, 0, -1, 0, 3, 1, 0, 2, -1, 2, 0, 2, 0, 0, 0, 1,
                0, 0, 2, 0, 1, 3, 0,
            ],
            &[4, 7, 8, 12, 13, 14, 15, 21, 22, 24, 26, 28, 32, 35, 37, 38],
        ),
        (
            16,
            &[
                0, 2, 0, 1, 2, 0, 2, 1, 2, 0, -1, 0, 1, 0, 3, 1, 0, 1, -1, 0, 2, 0, 2, 0, 3, 0, 2, 2, 1, 0, 3, 0, -1,
                0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 2, 0, 0, 1, -1, 0, 3, 0, 0, 3, -1, 3, 0, 0, -1, 3, 0, -1, 0, 3, 0, 0, 0,
                1, 1, 0, 0, 0, -1, 1, 0, 2, 0, 2, 0, -1, 0, 3, -1, 0, -1, 0, 0, 2, 1, 3, 2,
            ],
            &[1, 14, 22, 24, 26, 27, 30, 41, 49, 52, 54, 58, 62, 76, 80, 88],
        ),
        (
            29,
            &[-1, 0, 1, 2, -1, 3, 0, 1, 0, 0, -1, 0, 1, 0, 0, 3, 3, -1, -1, 0, 0, 0, 0, 0, 1, 0, -1, -1, 0, 0],
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29],
        ),
    ];
}
