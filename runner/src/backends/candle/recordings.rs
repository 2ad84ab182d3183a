//! Passes of one token of each sequence, recorded: what such a pass launches depends on how many sequences there are and how long they may be, and on
//! nothing else. So it is recorded when it comes for the second time, and launched at once from then on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use candle_core::Tensor;
use device::{CachedSpan, Machine, Recording, TILE_POSITIONS};

use super::act::Act;
use super::cached::Cached;
use super::state::State;
use super::{Angles, Candle};
use crate::backend::{Inputs, PassParts, Sequence};

/// Memory that recordings of a decoder keep, and one of them, at most.
const MOST_BYTES: usize = 256 << 20;
const MOST_BYTES_OF_ONE: usize = MOST_BYTES / 2;

/// The passes of a decoder that came again, the last used at the end.
#[derive(Debug, Default)]
pub(crate) struct Recordings {
    passes: Mutex<Vec<Pass>>,
    /// How often one was launched again.
    again: AtomicU64,
}

#[derive(Debug)]
struct Pass {
    kind: PassKind,
    recorded: Progress,
}

/// What the launches of a pass depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassKind {
    sequences: usize,
    /// Tiles of positions of the longest, a power of two.
    tiles: usize,
    /// Bytes of the blocks of all layers: those of a cache of another type have others.
    block_bytes: usize,
}

#[derive(Debug)]
enum Progress {
    /// It came once.
    Seen,
    /// It does something that cannot be recorded.
    Refused,
    Recorded(Box<Recorded>),
}

#[derive(Debug)]
struct Recorded {
    recording: Recording,
    /// What the last layer made.
    out: Tensor,
}

impl PassKind {
    /// `None` where a sequence has more than a token, or a layer keeps something else than keys and values for our kernels.
    fn of(sequences: &[Sequence<'_, Candle>]) -> Option<Self> {
        let (mut longest, mut block_bytes) = (0, 0);
        for (at, sequence) in sequences.iter().enumerate() {
            for state in &*sequence.states {
                let State::Cached(cached) = state else { return None };
                longest = longest.max(cached.kept.length + 1);
                block_bytes += if at == 0 { cached.room.block_bytes() } else { 0 };
            }
            if sequence.span.tokens != 1 {
                return None;
            }
        }
        let tiles = longest.div_ceil(TILE_POSITIONS).next_power_of_two();
        Some(Self { sequences: sequences.len(), tiles, block_bytes })
    }
}

impl Recordings {
    /// How often a recorded pass was launched again.
    #[cfg(test)]
    pub(crate) fn again(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }

    /// Computes a pass by `machine`: as it was recorded, or as always.
    pub(super) fn pass(
        &self,
        machine: &Machine,
        angles: &mut Vec<Angles>,
        sequences: &mut [Sequence<'_, Candle>],
        parts: PassParts<'_, Candle>,
    ) -> Result<Act> {
        let Some(kind) = PassKind::of(sequences) else { return parts.compute(angles, sequences) };
        let mut all = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = all.iter().position(|pass| pass.kind == kind) else {
            all.push(Pass { kind, recorded: Progress::Seen });
            return parts.compute(angles, sequences);
        };
        let mut pass = all.remove(at);
        let made = match &pass.recorded {
            Progress::Refused => parts.compute(angles, sequences),
            Progress::Recorded(recorded) => {
                self.again.fetch_add(1, Ordering::Relaxed);
                recorded.again(machine, angles, sequences, parts.inputs)
            }
            Progress::Seen => {
                make_room(sequences)?;
                let (made, recorded) = record(machine, kind, angles, sequences, parts)?;
                pass.recorded = recorded.map_or(Progress::Refused, |own| Progress::Recorded(Box::new(own)));
                Ok(made)
            }
        };
        all.push(pass);
        let bytes = |pass: &Pass| if let Progress::Recorded(own) = &pass.recorded { own.recording.bytes() } else { 0 };
        while all.iter().map(bytes).sum::<usize>() > MOST_BYTES {
            all.remove(0);
        }
        made
    }
}

/// Computes a pass, and writes down what it launches.
fn record(
    machine: &Machine,
    kind: PassKind,
    angles: &mut Vec<Angles>,
    sequences: &mut [Sequence<'_, Candle>],
    parts: PassParts<'_, Candle>,
) -> Result<(Act, Option<Recorded>)> {
    let layers = sequences.first().map_or(0, |sequence| sequence.states.len());
    let recording = machine.record(kind.tiles, layers, MOST_BYTES_OF_ONE);
    let made = parts.compute(angles, sequences)?;
    // What is computed when it is needed is needed now.
    let out = made.rows()?.clone();
    let recording = match recording.finish() {
        Ok(recording) => recording,
        // The pass itself was computed.
        Err(error) => {
            tracing::warn!("passes of {} sequences are launched one by one: {error:#}", kind.sequences);
            None
        }
    };
    Ok((made, recording.map(|recording| Recorded { recording, out })))
}

impl Recorded {
    fn again(
        &self,
        machine: &Machine,
        angles: &mut Vec<Angles>,
        sequences: &mut [Sequence<'_, Candle>],
        inputs: &mut Inputs<'_, Candle>,
    ) -> Result<Act> {
        make_room(sequences)?;
        machine.refill(&self.recording, || inputs(angles))?;
        machine.replay(&self.recording, |layer| spans(sequences, layer))?;
        for cached in sequences.iter_mut().flat_map(|sequence| sequence.states.iter_mut().filter_map(cached_mut)) {
            cached.kept.length += 1;
        }
        Ok(Act::of(self.out.clone()))
    }
}

/// Blocks for the next token of each sequence, in all layers: memory that they take is none of a recording's.
fn make_room(sequences: &mut [Sequence<'_, Candle>]) -> Result<()> {
    let mut all = sequences.iter_mut().flat_map(|sequence| sequence.states.iter_mut().filter_map(cached_mut));
    all.try_for_each(|Cached { kept, room }| kept.make_room(1, room))
}

fn cached_mut(state: &mut State) -> Option<&mut Cached> {
    if let State::Cached(own) = state { Some(own) } else { None }
}

fn spans<'a>(sequences: &'a [Sequence<'_, Candle>], layer: usize) -> Result<Vec<CachedSpan<'a>>> {
    let span = |(first, sequence): (usize, &'a Sequence<'_, Candle>)| {
        let State::Cached(Cached { kept, .. }) = &sequence.states[layer] else { return None };
        let blocks = kept.all.iter().map(Arc::as_ref).collect();
        Some(CachedSpan { first, tokens: 1, position: kept.length, start: kept.start, blocks })
    };
    sequences.iter().enumerate().map(span).collect::<Option<_>>().context("invariant: layers keep what they kept")
}
