//! Softmax attention, computed in one of two ways.
//!
//! Generated tokens come one by one. For them, the rows of the cache are read once for all query
//! heads of a key head, and threads share the positions in runs. Tokens of prompts are computed in
//! tiles of queries that share a key head, with an online softmax over runs of keys (Milakov and
//! Gimelshein 2018, arXiv 1805.02867).
//!
//! The two ways round differently. Tokens of a prompt are always computed in tiles, regardless of
//! the number of tokens in the pass; so are more than [`FEW`] other tokens of a sequence. Runs of
//! keys end at multiples of the tile's length in every pass. So the results of a prompt do not
//! depend on whether its prefix was cached, or on other sequences of the batch. A generated token
//! that is computed again as part of a prompt may differ in the last bits, unless all tokens are
//! computed in tiles ([`Cpu::deterministic`]).
#![expect(unsafe_code, reason = "threads write heads of one slice")]

use std::cell::RefCell;
use std::ops::Range;

use anyhow::Result;
use protocol::KvType;
use protocol::limits::TILE;

use super::state::{Half, Kv, State};
use kernels::float;
use kernels::gemm::{Slice, SliceMut, add_product};
use kernels::instructions::Instructions;
use kernels::kv_rows::exponentials_below;

use super::Cpu;
use crate::backend::{Attend, ChosenPositions, IndexQueries, LayerSequences, Sequence, Span, Values};
use kernels::pool::SharedSlice;

/// Greatest number of generated tokens of a sequence in a pass that are computed one by one.
const FEW: usize = 4;
/// Number of positions per task if tokens are computed one by one. It does not depend on the number
/// of threads, so the order of summation is fixed.
const RUN: usize = 128;

/// A key head of a sequence, with the parameters of its attention.
#[derive(Clone, Copy)]
struct KeyHead<'a> {
    instructions: Instructions,
    attend: &'a Attend<'a, Cpu>,
    kv: &'a Kv,
    index: usize,
    /// The positions to which tokens attend; `None`: all that they see.
    chosen: Option<&'a ChosenPositions>,
}

impl KeyHead<'_> {
    /// Applies what depends on the position of a token to its scores of the keys from `first` on.
    /// Returns whether the token attends to any of them.
    fn place(&self, head: usize, position: usize, first: usize, scores: &mut [f32]) -> bool {
        if let Some(bias) = self.attend.position_bias {
            bias.add(head, position, first, scores);
        }
        self.chosen.is_none_or(|chosen| chosen.mask(position, first, scores))
    }
}

impl Cpu {
    /// See [`Backend::attend`](crate::backend::Backend::attend).
    pub(super) fn attention(
        &self,
        attend: &Attend<'_, Self>,
        [query, key, value]: [&[f32]; 3],
        sequences: &mut LayerSequences<'_, Self>,
        out: &mut [f32],
    ) -> Result<()> {
        let (key_width, value_width) = (attend.kv_heads * attend.key_dim, attend.kv_heads * attend.value_dim);
        // Encoders keep no cache: the keys and values of their texts live for this call only.
        let mut texts = Vec::new();
        let given = if attend.reads_only { &[][..] } else { sequences.sequences };
        for sequence in given {
            let Span { first, tokens, .. } = sequence.span;
            let keys = &key[first * key_width..(first + tokens) * key_width];
            let values = match attend.values {
                Values::Own => &value[first * value_width..(first + tokens) * value_width],
                Values::InKeys => &[],
            };
            match sequences.states.get_mut(sequence.id)? {
                State::Kv(kv) => kv.append(keys, values)?,
                State::Nothing => {
                    let mut kv = Kv::new([attend.kv_heads, attend.key_dim, attend.value_dim], None, KvType::F32);
                    kv.append(keys, values)?;
                    texts.push(kv);
                }
                State::Recurrent(_) | State::Stateless => anyhow::bail!("invariant: attention has keys and values"),
            }
        }
        let out = SharedSlice::new(out);
        let mut texts = texts.iter();
        // Stays empty without an indexer, so that decoding a token allocates nothing.
        let mut chosen = Vec::new();
        for (index, sequence) in sequences.sequences.iter().enumerate() {
            let State::Kv(kv) = sequences.states.get(sequence.id)? else {
                if let Some(kv) = texts.next() {
                    self.many((attend, kv, None), sequence.span, query, &out);
                }
                continue;
            };
            if let Some(indexer) = &attend.indexer {
                chosen.resize_with(index, || None);
                chosen.push(self.choose(indexer, attend.key_dim, kv, sequence.span));
            }
            if !self.goes_one_by_one(sequence.span) {
                let own = chosen.get(index).and_then(Option::as_ref);
                self.many((attend, kv, own), sequence.span, query, &out);
            }
        }
        self.few(attend, (sequences, &chosen), query, &out);
        Ok(())
    }

    /// Chooses the positions to which the tokens of a sequence attend, unless that is all of them.
    fn choose(&self, indexer: &IndexQueries<'_, Self>, key_dim: usize, kv: &Kv, span: Span) -> Option<ChosenPositions> {
        let IndexQueries { queries, weights, heads, head_dim, count } = *indexer;
        if span.end() <= count {
            return None;
        }
        let scores = |token: usize, scores: &mut [f32]| {
            // The queries are as wide as the rows of keys, of which the indexer's are the last
            // elements.
            let (own, row) = (scores.len(), span.first + token);
            let mut wide = vec![0.0; heads * key_dim];
            let queries = &queries.numbers[row * heads * head_dim..][..heads * head_dim];
            for (wide, query) in wide.chunks_exact_mut(key_dim).zip(queries.chunks_exact(head_dim)) {
                wide[key_dim - head_dim..].copy_from_slice(query);
            }
            let mut products = vec![0.0; heads * own];
            let mut at = 0;
            for rows in kv.rows(Half::Keys, 0, 0, own) {
                rows.dots(self.instructions, &wide, &mut products[at..], own);
                at += rows.len();
            }
            scores.fill(0.0);
            let weights = &weights.numbers[row * heads..][..heads];
            for (products, weight) in products.chunks_exact(own).zip(weights) {
                for (score, product) in scores.iter_mut().zip(products) {
                    *score += weight * product.max(0.0);
                }
            }
        };
        Some(ChosenPositions::new(span, |marks| {
            self.pool.for_rows(marks, span.end(), |token, marks| {
                ChosenPositions::choose(span, (token, count), |own| scores(token, own), marks);
            });
        }))
    }

    /// Returns whether the tokens of a sequence are computed one by one.
    fn goes_one_by_one(&self, span: Span) -> bool {
        !self.deterministic && !span.is_prompt && span.tokens <= FEW
    }

    /// Computes sequences of few tokens: first the runs of positions of each token, for all query
    /// heads of a key head, then the combination of the runs.
    fn few(
        &self,
        attend: &Attend<'_, Self>,
        (sequences, chosen): (&LayerSequences<'_, Self>, &[Option<ChosenPositions>]),
        query: &[f32],
        out: &SharedSlice<'_, f32>,
    ) {
        let group = attend.heads / attend.kv_heads;
        let width = group * (attend.value_dim + 2);
        let tokens = || {
            let all = sequences.sequences.iter().enumerate();
            let few = all.filter(|(_, sequence)| self.goes_one_by_one(sequence.span));
            let kept = few.filter_map(|(index, sequence)| match sequences.states.get(sequence.id) {
                Ok(State::Kv(kv)) => Some((sequence, (kv, chosen.get(index).and_then(Option::as_ref)))),
                _ => None,
            });
            kept.flat_map(|(sequence, kv)| (0..sequence.span.tokens).map(move |token| (sequence, kv, token)))
        };
        let seen = |sequence: &Sequence, token| attend.seen(sequence.span, token);
        let runs: usize = tokens().map(|(sequence, _, token)| seen(sequence, token).len().div_ceil(RUN)).sum();
        // Rounded up, so that a longer sequence can mostly reuse the buffer.
        let mut parts = self.arena.take((runs * attend.kv_heads * width).next_power_of_two());
        let shared = SharedSlice::new(&mut parts);
        self.pool.run(runs * attend.kv_heads, |tasks| {
            for task in tasks {
                let (mut run, kv_head) = (task / attend.kv_heads, task % attend.kv_heads);
                for (sequence, (kv, chosen), token) in tokens() {
                    let seen = seen(sequence, token);
                    if run < seen.len().div_ceil(RUN) {
                        let from = seen.start + run * RUN;
                        let row = (sequence.span.first + token) * attend.heads + kv_head * group;
                        let query = &query[row * attend.key_dim..(row + group) * attend.key_dim];
                        // SAFETY: a region hands out each task once.
                        let part = unsafe { shared.range(task * width..(task + 1) * width) };
                        let seen = from..seen.end.min(from + RUN);
                        let instructions = self.instructions;
                        let head = KeyHead { instructions, attend, kv, index: kv_head, chosen };
                        few_heads(head, (sequence.span.position + token, query), seen, part);
                        break;
                    }
                    run -= seen.len().div_ceil(RUN);
                }
            }
        });
        let mut first = 0;
        for (sequence, _, token) in tokens() {
            let count = seen(sequence, token).len().div_ceil(RUN);
            let own = &parts[first * attend.kv_heads * width..(first + count) * attend.kv_heads * width];
            first += count;
            for head in 0..attend.heads {
                let row = (sequence.span.first + token) * attend.heads + head;
                // SAFETY: the region has ended, and each head of each token comes once.
                let out = unsafe { out.range(row * attend.value_dim..(row + 1) * attend.value_dim) };
                let of_head = |run: usize| {
                    let at = (run * attend.kv_heads + head / group) * width + head % group * (attend.value_dim + 2);
                    &own[at..at + attend.value_dim + 2]
                };
                put_together((0..count).map(of_head), attend.sinks.map(|sinks| sinks[head]), out);
            }
        }
    }

    /// Computes a sequence of many tokens in tiles of queries that share a key head.
    fn many(
        &self,
        (attend, kv, chosen): (&Attend<'_, Self>, &Kv, Option<&ChosenPositions>),
        span: Span,
        query: &[f32],
        out: &SharedSlice<'_, f32>,
    ) {
        let group = attend.heads / attend.kv_heads;
        let tile = (TILE.0 / group).clamp(1, span.tokens);
        let tiles = span.tokens.div_ceil(tile);
        self.pool.run(tiles * attend.kv_heads, |tasks| {
            for task in tasks {
                // The last tiles see the most positions, so they come first.
                let (index, kv_head) = (tiles - 1 - task / attend.kv_heads, task % attend.kv_heads);
                let tokens = index * tile..((index + 1) * tile).min(span.tokens);
                thread_local!(static SCRATCH: RefCell<Tile> = const { RefCell::new(Tile::EMPTY) });
                SCRATCH.with_borrow_mut(|scratch| {
                    let head = KeyHead { instructions: self.instructions, attend, kv, index: kv_head, chosen };
                    scratch.compute(head, span, &tokens, query, out);
                });
            }
        });
    }
}

/// Attends to a run of positions with the query heads of a key head. Writes, for each head: the sum
/// of the values, weighted by the exponentials of the scores less the largest score; the largest
/// score; and the sum of the exponentials.
fn few_heads(key_head: KeyHead<'_>, (position, query): (usize, &[f32]), seen: Range<usize>, out: &mut [f32]) {
    let KeyHead { instructions, attend, kv, index: kv_head, .. } = key_head;
    let (group, count) = (query.len() / attend.key_dim, seen.len());
    let rows = |half| kv.rows(half, kv_head, seen.start, seen.end);
    float::with_buffer(group * count + query.len(), |numbers| {
        let (scaled, scores) = numbers.split_at_mut(query.len());
        scaled.iter_mut().zip(query).for_each(|(scaled, x)| *scaled = x * attend.scale);
        let mut at = 0;
        for rows in rows(Half::Keys) {
            rows.dots(instructions, scaled, &mut scores[at..], count);
            at += rows.len();
        }
        let of_heads = scores.chunks_exact_mut(count).zip(out.chunks_exact_mut(attend.value_dim + 2));
        for (head, (scores, out)) in (kv_head * group..).zip(of_heads) {
            cap(scores, attend.soft_cap);
            if !key_head.place(head, position, seen.start, scores) {
                scores.fill(0.0);
                out.fill(0.0);
                out[attend.value_dim] = f32::NEG_INFINITY;
                continue;
            }
            let (largest, sum) = exponentials_below(instructions, scores, f32::NEG_INFINITY);
            out.fill(0.0);
            (out[attend.value_dim], out[attend.value_dim + 1]) = (largest, sum);
        }
        let mut at = 0;
        for rows in rows(Half::Values) {
            let rows = rows.first(attend.value_dim);
            rows.mixes(instructions, &scores[at..], count, out, attend.value_dim + 2);
            at += rows.len();
        }
    });
}

/// Combines the results of [`few_heads`] for several runs of a head, and its attention sink.
fn put_together<'a>(runs: impl Iterator<Item = &'a [f32]> + Clone, sink: Option<f32>, out: &mut [f32]) {
    let numbers = out.len();
    let largest = runs.clone().map(|run| run[numbers]).fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
    let mut sum = sink.map_or(0.0, |sink| (sink - largest).exp());
    out.fill(0.0);
    for run in runs {
        let weight = (run[numbers] - largest).exp();
        sum += weight * run[numbers + 1];
        for (out, mixed) in out.iter_mut().zip(run) {
            *out += weight * mixed;
        }
    }
    let inverse = 1.0 / sum;
    for x in out.iter_mut() {
        *x *= inverse;
    }
}

fn cap(scores: &mut [f32], soft_cap: Option<f32>) {
    if let Some(cap) = soft_cap {
        for score in scores.iter_mut() {
            *score = cap * (*score / cap).tanh();
        }
    }
}

/// Scratch memory of a tile. Its rows are queries: for each token, the heads that share the key
/// head.
struct Tile {
    /// `[rows, key_dim]`, scaled.
    queries: Vec<f32>,
    /// `[key_dim, keys]`, transposed.
    keys: Vec<f32>,
    /// `[keys, max(key_dim, value_dim)]`: decoded keys or values.
    rows: Vec<f32>,
    /// `[rows, keys]`.
    scores: Vec<f32>,
    /// `[rows, value_dim]`.
    mixed: Vec<f32>,
    /// For each row, the largest score so far, and the sum of the exponentials relative to it.
    softmax: Vec<(f32, f32)>,
}

impl Tile {
    const EMPTY: Self = Self {
        queries: Vec::new(),
        keys: Vec::new(),
        rows: Vec::new(),
        scores: Vec::new(),
        mixed: Vec::new(),
        softmax: Vec::new(),
    };

    fn compute(
        &mut self,
        key_head: KeyHead<'_>,
        span: Span,
        tokens: &Range<usize>,
        query: &[f32],
        out: &SharedSlice<'_, f32>,
    ) {
        let KeyHead { attend, index: kv_head, .. } = key_head;
        let (group, key_dim, value_dim) = (attend.heads / attend.kv_heads, attend.key_dim, attend.value_dim);
        let rows = tokens.len() * group;
        let place =
            |row: usize| (span.first + tokens.start + row / group) * attend.heads + kv_head * group + row % group;
        self.queries.clear();
        for row in 0..rows {
            self.queries.extend(query[place(row) * key_dim..][..key_dim].iter().map(|x| x * attend.scale));
        }
        self.mixed.clear();
        self.mixed.resize(rows * value_dim, 0.0);
        self.softmax.clear();
        self.softmax.extend((0..rows).map(|row| match attend.sinks {
            Some(sinks) => (sinks[kv_head * group + row % group], 1.0),
            None => (f32::NEG_INFINITY, 0.0),
        }));
        let seen = |token: usize| attend.seen(span, token);
        let (from, to) = (seen(tokens.start).start, seen(tokens.end - 1).end);
        let mut begin = from;
        while begin < to {
            // Runs end at the same positions for every tile, although the start of a window depends
            // on the tile's first token.
            let end = ((begin / TILE.1 + 1) * TILE.1).min(to);
            let token = |row: usize| tokens.start + row / group;
            self.run(key_head, begin..end, rows, |row| (span.position + token(row), seen(token(row))));
            begin = end;
        }
        for row in 0..rows {
            let inverse = 1.0 / self.softmax[row].1;
            // SAFETY: each head of each token is in one tile, and a region hands out each once.
            let out = unsafe { out.range(place(row) * value_dim..(place(row) + 1) * value_dim) };
            for (out, mixed) in out.iter_mut().zip(&self.mixed[row * value_dim..]) {
                *out = mixed * inverse;
            }
        }
    }

    /// Adds a run of keys to the online softmax. `place` returns the position of a row's token, and
    /// the positions that it sees.
    fn run(
        &mut self,
        key_head: KeyHead<'_>,
        keys: Range<usize>,
        rows: usize,
        place: impl Fn(usize) -> (usize, Range<usize>),
    ) {
        let KeyHead { instructions, attend, kv, index: kv_head, .. } = key_head;
        let (count, key_dim, value_dim) = (keys.len(), attend.key_dim, attend.value_dim);
        let group = attend.heads / attend.kv_heads;
        self.rows.resize(TILE.1 * key_dim.max(value_dim), 0.0);
        self.keys.resize(TILE.1 * key_dim, 0.0);
        self.scores.resize(rows * TILE.1, 0.0);
        let mut at = 0;
        for part in kv.rows(Half::Keys, kv_head, keys.start, keys.end) {
            part.decode(instructions, &mut self.rows[at * key_dim..(at + part.len()) * key_dim]);
            at += part.len();
        }
        transpose(&self.rows[..count * key_dim], key_dim, &mut self.keys, count);
        self.scores[..rows * count].fill(0.0);
        let queries = Slice { numbers: &self.queries, stride: key_dim };
        let transposed = Slice { numbers: &self.keys, stride: count };
        let scores = SliceMut { numbers: &mut self.scores, stride: count };
        add_product(instructions, [rows, count, key_dim], queries, transposed, scores);
        for row in 0..rows {
            let scores = &mut self.scores[row * count..][..count];
            let (position, seen) = place(row);
            // A token whose window does not overlap the run ignores all of it.
            let from = seen.start.clamp(keys.start, keys.end) - keys.start;
            let to = seen.end.clamp(keys.start + from, keys.end) - keys.start;
            scores[..from].fill(0.0);
            scores[to..].fill(0.0);
            if from == to {
                continue;
            }
            cap(&mut scores[from..to], attend.soft_cap);
            let head = kv_head * group + row % group;
            if !key_head.place(head, position, keys.start + from, &mut scores[from..to]) {
                scores[from..to].fill(0.0);
                continue;
            }
            let (before, sum) = self.softmax[row];
            let (largest, added) = exponentials_below(instructions, &mut scores[from..to], before);
            let shrink = (before - largest).exp();
            if shrink < 1.0 {
                self.mixed[row * value_dim..][..value_dim].iter_mut().for_each(|x| *x *= shrink);
            }
            self.softmax[row] = (largest, if sum == 0.0 { added } else { sum * shrink + added });
        }
        if attend.values == Values::Own {
            let mut at = 0;
            for part in kv.rows(Half::Values, kv_head, keys.start, keys.end) {
                part.decode(instructions, &mut self.rows[at * value_dim..(at + part.len()) * value_dim]);
                at += part.len();
            }
        }
        let stride = if attend.values == Values::Own { value_dim } else { key_dim };
        let scores = Slice { numbers: &self.scores, stride: count };
        let values = Slice { numbers: &self.rows, stride };
        let mixed = SliceMut { numbers: &mut self.mixed, stride: value_dim };
        add_product(instructions, [rows, value_dim, count], scores, values, mixed);
    }
}

/// Transposes `[rows, columns]` to `[columns, rows]`.
fn transpose(x: &[f32], columns: usize, out: &mut [f32], rows: usize) {
    const BLOCK: usize = 8;
    for first in (0..rows).step_by(BLOCK) {
        for column in 0..columns {
            let out = &mut out[column * rows + first..column * rows + (first + BLOCK).min(rows)];
            for (at, out) in out.iter_mut().enumerate() {
                *out = x[(first + at) * columns + column];
            }
        }
    }
}
