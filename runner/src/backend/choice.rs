//! Attention to a part of the positions, which an indexer chooses.

use std::ops::Range;

use architectures::BlockRule;

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

/// Queries and keys of an indexer that chooses blocks, see [`architectures::BlockIndexer`].
#[derive(Debug)]
pub(crate) struct BlockChoice<'a, B: Backend> {
    /// `[tokens, heads · head_dim]`.
    pub(crate) queries: &'a B::Act,
    /// `[tokens, head_dim]`. With [`BlockRule::Mean`], the key of a block is that of its last
    /// position.
    pub(crate) keys: &'a B::Act,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// Number of positions of a block.
    pub(crate) block: usize,
    /// Number of blocks that are chosen.
    pub(crate) count: usize,
    pub(crate) rule: BlockRule,
}

impl<B: Backend> BlockChoice<'_, B> {
    /// Whether the tokens of a sequence attend to a part of the positions.
    pub(crate) fn is_needed(&self, span: Span) -> bool {
        let blocks = match self.rule {
            BlockRule::Mean => span.end() / self.block,
            BlockRule::Greatest { .. } => span.end().div_ceil(self.block),
        };
        blocks > self.count
    }

    /// Chooses blocks for the tokens of a sequence. `fill` calls [`mark`](Self::mark) for the marks
    /// of each token, `[tokens, groups · blocks]`.
    pub(crate) fn of_sequence(&self, span: Span, fill: impl FnOnce(&mut [bool], usize)) -> ChosenPositions {
        let groups = if self.rule == BlockRule::Mean { 1 } else { self.heads };
        ChosenPositions::new(span, [self.block, groups], fill)
    }

    /// Sets the marks of the token at `position`, `[groups, blocks]`. `products` writes the
    /// products of a head's query with the keys of the first positions, or of the first blocks.
    pub(crate) fn mark(&self, position: usize, mut products: impl FnMut(usize, &mut [f32]), marks: &mut [bool]) {
        match self.rule {
            BlockRule::Mean => {
                let complete = (position + 1) / self.block;
                let scores = |scores: &mut [f32]| {
                    let mut own = vec![0.0; scores.len()];
                    scores.fill(0.0);
                    for head in 0..self.heads {
                        products(head, &mut own);
                        scores.iter_mut().zip(&own).for_each(|(score, product)| *score += product.max(0.0));
                    }
                };
                ChosenPositions::choose(complete, self.count, scores, &mut marks[..complete]);
                if complete * self.block <= position {
                    marks[complete] = true;
                }
            }
            BlockRule::Greatest { local } => {
                let (visible, blocks) = (position / self.block + 1, marks.len() / self.heads);
                for (head, marks) in marks.chunks_exact_mut(blocks).enumerate() {
                    let scores = |scores: &mut [f32]| {
                        let mut own = vec![0.0; position + 1];
                        products(head, &mut own);
                        for (score, products) in scores.iter_mut().zip(own.chunks(self.block)) {
                            *score = products.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        }
                        scores[visible.saturating_sub(local as usize)..].fill(f32::INFINITY);
                    };
                    ChosenPositions::choose(visible, self.count, scores, &mut marks[..visible]);
                }
            }
        }
    }
}

/// The positions to which the tokens of a sequence attend.
#[derive(Debug)]
pub(crate) struct ChosenPositions {
    span: Span,
    /// Number of consecutive positions that are chosen together.
    block: usize,
    /// Number of keys of a block: one for each position, or 1 if a block is a compressed entry.
    keys: usize,
    /// Number of groups of consecutive heads that attend to different positions.
    groups: usize,
    /// Whether a token attends to a block: `[tokens, groups, blocks]`, up to the last position of
    /// the span.
    chosen: Vec<bool>,
}

impl ChosenPositions {
    /// Creates the marks `[tokens, groups · blocks]`, which `fill` sets by
    /// [`choose`](Self::choose). It gets them with the number of marks of a token.
    pub(crate) fn new(span: Span, [block, groups]: [usize; 2], fill: impl FnOnce(&mut [bool], usize)) -> Self {
        let of_token = groups * span.end().div_ceil(block);
        let mut chosen = vec![false; span.tokens * of_token];
        fill(&mut chosen, of_token);
        Self { span, block, keys: block, groups, chosen }
    }

    /// Creates the marks of compressed entries, each of which stands for `every` positions:
    /// `[tokens, entries]`, up to the last position of the span. `fill` sets those of a token.
    pub(crate) fn of_entries(span: Span, every: usize, fill: impl FnOnce(&mut [bool], usize)) -> Self {
        Self { keys: 1, ..Self::new(span, [every, 1], fill) }
    }

    /// Chooses the `count` positions or blocks with the greatest scores among the first `visible`
    /// ones, which a token sees. `scores` writes their scores; `chosen` are the marks of the token.
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

    /// Whether all heads attend to the same positions.
    pub(crate) fn is_shared(&self) -> bool {
        self.groups == 1
    }

    /// Returns whether some head of the token at `position` attends to some of these keys.
    pub(crate) fn has_some(&self, position: usize, keys: &Range<usize>) -> bool {
        let (token, blocks) = (position - self.span.position, self.span.end().div_ceil(self.block));
        let own = &self.chosen[token * self.groups * blocks..][..self.groups * blocks];
        let part = keys.start / self.keys..keys.end.div_ceil(self.keys);
        own.chunks_exact(blocks).any(|own| own[part.clone()].contains(&true))
    }

    /// Sets the scores of positions or entries that were not chosen to minus infinity: of one of
    /// `heads` heads of the token at `position`, from the position or entry `first` on. Returns
    /// true if some of them were chosen.
    pub(crate) fn mask(&self, [head, heads]: [usize; 2], position: usize, first: usize, scores: &mut [f32]) -> bool {
        let (token, blocks) = (position - self.span.position, self.span.end().div_ceil(self.block));
        let group = head * self.groups / heads;
        let own = &self.chosen[(token * self.groups + group) * blocks..][..blocks];
        let mut has_some = false;
        // The first block may have begun before the first score.
        let mut rest = scores;
        let mut length = self.keys - first % self.keys;
        for is_chosen in &own[first / self.keys..] {
            let (block, behind) = rest.split_at_mut(length.min(rest.len()));
            if *is_chosen {
                has_some |= !block.is_empty();
            } else {
                block.fill(f32::NEG_INFINITY);
            }
            (rest, length) = (behind, self.keys);
            if rest.is_empty() {
                break;
            }
        }
        has_some
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
    use crate::backends::cpu::Cpu;

    #[test]
    fn the_greatest_scores_are_chosen() {
        let span = Span { first: 0, position: 1, tokens: 3, is_prompt: true, is_bidirectional: false };
        let scores = [0.5, -1.0, 0.25, 2.0];
        let chosen = ChosenPositions::new(span, [1, 1], |all, width| {
            for (token, row) in all.chunks_exact_mut(width).enumerate() {
                let fill = |own: &mut [f32]| own.copy_from_slice(&scores[..own.len()]);
                ChosenPositions::choose(span.position + token + 1, 2, fill, row);
            }
        });
        let of = |position: usize| {
            let mut row = vec![0.0; 4];
            assert!(chosen.mask([0, 1], position, 0, &mut row));
            row.iter().map(|score| *score == 0.0).collect::<Vec<bool>>()
        };
        assert_eq!(of(1), [true, true, false, false], "all positions that there are");
        assert_eq!(of(2), [true, false, true, false]);
        assert_eq!(of(3), [true, false, false, true]);
        assert!(!chosen.mask([0, 1], 3, 1, &mut [0.0, 0.0]));
        assert_eq!([0..1, 1..3, 1..4].map(|keys| chosen.has_some(3, &keys)), [true, false, true]);
    }

    /// Chooses blocks for the tokens of a span of ten positions; returns for each position whether
    /// the first or the second of two heads attends to it.
    fn seen(rule: BlockRule, position: usize, products: [&[f32]; 2]) -> [String; 2] {
        let backend = crate::fixtures::cpu();
        let none = backend.rows(1, 1, |_| Ok(())).expect("rows");
        let choice: BlockChoice<'_, Cpu> =
            BlockChoice { queries: &none, keys: &none, heads: 2, head_dim: 1, block: 3, count: 2, rule };
        let span = Span { first: 0, position: 0, tokens: 10, is_prompt: true, is_bidirectional: false };
        assert!(choice.is_needed(span) && !choice.is_needed(Span { tokens: 5, ..span }));
        let chosen = choice.of_sequence(span, |marks, width| {
            for (token, marks) in marks.chunks_exact_mut(width).enumerate() {
                choice.mark(token, |head, out| out.copy_from_slice(&products[head][..out.len()]), marks);
            }
        });
        [0, 1].map(|head| {
            let mut scores = vec![0.0; position + 1];
            // In two parts, the second of which begins inside a block.
            let (before, behind) = scores.split_at_mut(position.min(4));
            let has_some =
                [chosen.mask([head, 2], position, 0, before), chosen.mask([head, 2], position, before.len(), behind)];
            assert_eq!(has_some, [before.contains(&0.0), behind.contains(&0.0)]);
            scores.iter().map(|score| if *score == 0.0 { 'x' } else { '.' }).collect()
        })
    }

    #[test]
    fn blocks_are_chosen_by_the_sum_of_heads() {
        // Products with the keys of the three complete blocks.
        let products: [&[f32]; 2] = [&[5.0, 1.0, -9.0], &[-9.0, 2.0, 4.0]];
        let all = |expected: &str| [expected.to_owned(), expected.to_owned()];
        assert_eq!(seen(BlockRule::Mean, 9, products), all("xxx...xxxx"), "and the incomplete block");
        assert_eq!(seen(BlockRule::Mean, 8, products), all("xxx...xxx"));
        assert_eq!(seen(BlockRule::Mean, 7, products), all("xxxxxxxx"), "as many as there are");
    }

    #[test]
    fn blocks_are_chosen_by_each_head() {
        let products: [&[f32]; 2] = [
            &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, -5.0],
            &[0.0, 0.0, 1.0, 3.0, 0.0, 0.0, 0.0, 2.0, 0.0, -5.0],
        ];
        let rule = BlockRule::Greatest { local: 1 };
        assert_eq!(seen(rule, 9, products), ["......xxxx", "...xxx...x"], "its own block counts");
        assert_eq!(seen(rule, 7, products), ["xxx...xx", "...xxxxx"]);
        assert_eq!(seen(BlockRule::Greatest { local: 0 }, 9, products), ["xxx...xxx.", "...xxxxxx."]);
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
