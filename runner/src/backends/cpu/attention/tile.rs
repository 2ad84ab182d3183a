//! Attention of a tile of queries, with an online softmax over runs of keys.

use std::ops::Range;

use kernels::gemm::{Slice, SliceMut, add_product};
use kernels::kv_rows::exponentials_below;
use kernels::pool::SharedSlice;
use protocol::limits::TILE;

use super::{KeyHead, Keys, cap};
use crate::backend::{Span, Values};
use crate::backends::cpu::state::Half;

/// Scratch memory of a tile. Its rows are queries: for each token, the heads that share the key
/// head.
pub(super) struct Tile {
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
    pub(super) const EMPTY: Self = Self {
        queries: Vec::new(),
        keys: Vec::new(),
        rows: Vec::new(),
        scores: Vec::new(),
        mixed: Vec::new(),
        softmax: Vec::new(),
    };

    /// Computes attention for some tokens of a sequence and the query heads of a key head.
    pub(super) fn compute(
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
        self.runs(key_head, span, tokens, |token| attend.seen(span, token));
        if let Some((head, entries)) = key_head.of_entries().zip(attend.entries.as_ref()) {
            self.runs(head, span, tokens, |token| 0..entries.seen(span.position + token));
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

    /// Adds the keys that some tokens see to the online softmax, run by run.
    fn runs(&mut self, key_head: KeyHead<'_>, span: Span, tokens: &Range<usize>, seen: impl Fn(usize) -> Range<usize>) {
        let group = key_head.attend.heads / key_head.attend.kv_heads;
        let (from, to) = (seen(tokens.start).start, seen(tokens.end - 1).end);
        let token = |row: usize| tokens.start + row / group;
        let mut begin = from;
        while begin < to {
            // Runs end at the same positions for every tile, although the start of a window depends
            // on the tile's first token.
            let end = ((begin / TILE.1 + 1) * TILE.1).min(to);
            let rows = tokens.len() * group;
            self.run(key_head, begin..end, rows, |row| (span.position + token(row), seen(token(row))));
            begin = end;
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
        let KeyHead { instructions, attend, keys: Keys { kv, .. }, index: kv_head, .. } = key_head;
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
            if !key_head.bias_and_mask(head, position, keys.start + from, &mut scores[from..to]) {
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
