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

mod tile;

use std::cell::RefCell;
use std::ops::Range;

use anyhow::Result;
use kernels::float;
use kernels::instructions::Instructions;
use kernels::kv_rows::exponentials_below;
use kernels::pool::SharedSlice;
use protocol::KvType;
use protocol::limits::TILE;

use self::tile::Tile;
use super::state::{Half, Kv, State};
use super::{Cpu, compression};
use crate::backend::{Attend, ChosenPositions, LayerSequences, Sequence, Span, Values};

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
    keys: Keys<'a>,
    index: usize,
    /// Keys that stand for several positions each.
    entries: Option<Keys<'a>>,
}

/// Keys of a sequence.
#[derive(Clone, Copy)]
struct Keys<'a> {
    kv: &'a Kv,
    /// Those to which tokens attend; `None`: all that they see.
    chosen: Option<&'a ChosenPositions>,
}

impl KeyHead<'_> {
    /// Returns the same head with the keys of entries, if there are some.
    fn of_entries(self) -> Option<Self> {
        self.entries.map(|keys| Self { keys, entries: None, ..self })
    }

    /// Returns the head with the keys of a run of keys that a token sees, and the run: first those
    /// of positions, then those of entries.
    fn keys_of_run(self, span: Span, token: usize, run: usize) -> (Self, Range<usize>) {
        let [positions, entries] = keys_of(self.attend, span, token);
        let before = positions.len().div_ceil(RUN);
        let (head, seen, run) = match self.of_entries() {
            Some(head) if run >= before => (head, entries, run - before),
            _ => (self, positions, run),
        };
        let from = seen.start + run * RUN;
        (head, from..seen.end.min(from + RUN))
    }

    /// Adds the position bias to the scores of the token at `position` for the keys from `first`
    /// on, and masks the keys that were not chosen. Returns whether any of them was.
    fn bias_and_mask(self, head: usize, position: usize, first: usize, scores: &mut [f32]) -> bool {
        if let Some(bias) = self.attend.position_bias {
            bias.add(head, position, first, scores);
        }
        self.keys.chosen.is_none_or(|chosen| chosen.mask([head, self.attend.heads], position, first, scores))
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
                State::Recurrent(_) | State::Entries(_) | State::Stateless => {
                    anyhow::bail!("invariant: attention has keys and values")
                }
            }
        }
        let out = SharedSlice::new(out);
        let mut texts = texts.iter();
        // Stays empty without an indexer, so that decoding a token allocates nothing.
        let mut own_choice = Vec::new();
        for (index, sequence) in sequences.sequences.iter().enumerate() {
            let State::Kv(kv) = sequences.states.get(sequence.id)? else {
                if let Some(kv) = texts.next() {
                    self.many(self.first_head(attend, Keys { kv, chosen: None }, None), sequence.span, query, &out);
                }
                continue;
            };
            if let Some(indexer) = &attend.indexer {
                own_choice.resize_with(index, || None);
                own_choice.push(self.choose(indexer, attend.key_dim, kv, sequence.span));
            }
            let entries = entries_of(attend, index, sequence)?;
            if !self.goes_one_by_one(sequence.span) {
                let chosen = attend.chosen.unwrap_or(&own_choice).get(index).and_then(Option::as_ref);
                let head = self.first_head(attend, Keys { kv, chosen }, entries);
                self.many(head, sequence.span, query, &out);
            }
        }
        self.few(attend, sequences, attend.chosen.unwrap_or(&own_choice), query, &out);
        Ok(())
    }

    /// Returns the first key head of a sequence.
    fn first_head<'a>(&self, attend: &'a Attend<'a, Self>, keys: Keys<'a>, entries: Option<Keys<'a>>) -> KeyHead<'a> {
        KeyHead { instructions: self.instructions, attend, keys, index: 0, entries }
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
        sequences: &LayerSequences<'_, Self>,
        chosen: &[Option<ChosenPositions>],
        query: &[f32],
        out: &SharedSlice<'_, f32>,
    ) {
        let group = attend.heads / attend.kv_heads;
        let width = group * (attend.value_dim + 2);
        let tokens = || {
            let all = sequences.sequences.iter().enumerate();
            let few = all.filter(|(_, sequence)| self.goes_one_by_one(sequence.span));
            let kept = few.filter_map(|(index, sequence)| match sequences.states.get(sequence.id) {
                Ok(State::Kv(kv)) => {
                    let keys = Keys { kv, chosen: chosen.get(index).and_then(Option::as_ref) };
                    // A state of another kind was an error before.
                    let entries = entries_of(attend, index, sequence).unwrap_or_default();
                    Some((sequence, self.first_head(attend, keys, entries)))
                }
                _ => None,
            });
            kept.flat_map(|(sequence, head)| (0..sequence.span.tokens).map(move |token| (sequence, head, token)))
        };
        let count_of = |sequence: &Sequence, token: usize| -> usize {
            keys_of(attend, sequence.span, token).iter().map(|seen| seen.len().div_ceil(RUN)).sum()
        };
        let runs: usize = tokens().map(|(sequence, _, token)| count_of(sequence, token)).sum();
        // Rounded up, so that a longer sequence can mostly reuse the buffer.
        let mut parts = self.arena.take((runs * attend.kv_heads * width).next_power_of_two());
        let shared = SharedSlice::new(&mut parts);
        self.pool.run(runs * attend.kv_heads, |tasks| {
            for task in tasks {
                let (mut run, kv_head) = (task / attend.kv_heads, task % attend.kv_heads);
                for (sequence, head, token) in tokens() {
                    let count = count_of(sequence, token);
                    if run >= count {
                        run -= count;
                        continue;
                    }
                    let (head, seen) = head.keys_of_run(sequence.span, token, run);
                    let row = (sequence.span.first + token) * attend.heads + kv_head * group;
                    let query = &query[row * attend.key_dim..(row + group) * attend.key_dim];
                    // SAFETY: a region hands out each task once.
                    let part = unsafe { shared.range(task * width..(task + 1) * width) };
                    let head = KeyHead { index: kv_head, ..head };
                    few_heads(head, sequence.span.position + token, query, seen, part);
                    break;
                }
            }
        });
        let mut first = 0;
        for (sequence, _, token) in tokens() {
            let count = count_of(sequence, token);
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
    fn many(&self, first_head: KeyHead<'_>, span: Span, query: &[f32], out: &SharedSlice<'_, f32>) {
        let attend = first_head.attend;
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
                    let head = KeyHead { index: kv_head, ..first_head };
                    scratch.compute(head, span, &tokens, query, out);
                });
            }
        });
    }
}

/// Returns the positions and the entries that a token of a span sees.
fn keys_of(attend: &Attend<'_, Cpu>, span: Span, token: usize) -> [Range<usize>; 2] {
    let entries = attend.entries.as_ref().map_or(0, |own| own.seen(span.position + token));
    [attend.seen(span, token), 0..entries]
}

/// Returns the entries of a sequence, the `index`th of the pass.
fn entries_of<'a>(attend: &'a Attend<'a, Cpu>, index: usize, sequence: &Sequence) -> Result<Option<Keys<'a>>> {
    let Some(entries) = &attend.entries else { return Ok(None) };
    let (state, chosen) = entries.of(index, sequence.id)?;
    Ok(Some(Keys { kv: compression::entries(state)?, chosen }))
}

/// Attends to a run of positions with the query heads of a key head. Writes, for each head: the sum
/// of the values, weighted by the exponentials of the scores less the largest score; the largest
/// score; and the sum of the exponentials.
fn few_heads(key_head: KeyHead<'_>, position: usize, query: &[f32], seen: Range<usize>, out: &mut [f32]) {
    let KeyHead { instructions, attend, keys: Keys { kv, chosen }, index: kv_head, .. } = key_head;
    let (group, count) = (query.len() / attend.key_dim, seen.len());
    if chosen.is_some_and(|chosen| !chosen.has_some(position, &seen)) {
        for out in out.chunks_exact_mut(attend.value_dim + 2) {
            out.fill(0.0);
            out[attend.value_dim] = f32::NEG_INFINITY;
        }
        return;
    }
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
            if !key_head.bias_and_mask(head, position, seen.start, scores) {
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
