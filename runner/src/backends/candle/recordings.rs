//! Passes of one token of each sequence, recorded: what such a pass launches depends on how many sequences there are and how long they may be, and on
//! nothing else. So it is recorded when it comes for the second time, and launched at once from then on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use anyhow::{Context, Result};
use candle_core::Tensor;
use device::{CachedSpan, Machine, Obstacle, Recording, Spare, TILE_POSITIONS};
use protocol::KvType;
use protocol::limits::DEVICE_RECORDINGS;

use super::act::Act;
use super::cached::Cached;
use super::state::State;
use super::{Angles, Candle};
use crate::backend::{Inputs, PassParts, Sequence};

/// Memory that one recording keeps, at most.
const MOST_BYTES: usize = DEVICE_RECORDINGS / 2;
/// Passes of a kind that are launched one by one after one could not be recorded, before it is tried again.
const PAUSE: u32 = if cfg!(test) { 4 } else { 1000 };

/// The passes of a decoder that came again.
#[derive(Debug, Default)]
pub(crate) struct Recordings {
    known: Arc<Known>,
    /// Set once the machine knows that there is memory here to be given up.
    is_announced: OnceLock<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The last used at the end; without that which is being computed.
    passes: Mutex<Vec<Pass>>,
    /// How often one was launched again.
    again: AtomicU64,
}

#[derive(Debug)]
struct Pass {
    kind: PassKind,
    progress: Progress,
}

/// What the launches of a pass depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassKind {
    sequences: usize,
    /// Tiles of positions of the longest, a power of two.
    tiles: usize,
    /// How caches keep keys and values.
    kv_type: KvType,
}

#[derive(Debug)]
enum Progress {
    /// It came, and is recorded after so many more.
    Seen(u32),
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
        let (mut longest, mut kv_type) = (0, None);
        for sequence in sequences {
            for state in &*sequence.states {
                let State::Cached(cached) = state else { return None };
                longest = longest.max(cached.kept.length + 1);
                // All layers of all sequences have the same.
                kv_type = Some(cached.room.kv_type());
            }
            if sequence.span.tokens != 1 {
                return None;
            }
        }
        let tiles = longest.div_ceil(TILE_POSITIONS).next_power_of_two();
        Some(Self { sequences: sequences.len(), tiles, kv_type: kv_type? })
    }
}

impl Known {
    fn passes(&self) -> MutexGuard<'_, Vec<Pass>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is known of a kind.
    fn take(&self, kind: PassKind) -> Option<Progress> {
        let mut all = self.passes();
        let at = all.iter().position(|pass| pass.kind == kind)?;
        Some(all.remove(at).progress)
    }

    /// Keeps it; what was used least recently goes where all would keep too much.
    fn put(&self, kind: PassKind, progress: Progress) {
        let mut all = self.passes();
        all.push(Pass { kind, progress });
        while all.iter().map(|pass| pass.progress.bytes()).sum::<usize>() > DEVICE_RECORDINGS {
            let Some(oldest) = all.iter().position(|pass| pass.progress.bytes() > 0) else { return };
            all.remove(oldest);
        }
    }
}

impl Spare for Known {
    fn give_up(&self) -> bool {
        let mut is_less = false;
        for pass in self.passes().iter_mut() {
            if pass.progress.bytes() > 0 {
                pass.progress = Progress::Seen(PAUSE);
                is_less = true;
            }
        }
        is_less
    }
}

impl Progress {
    fn bytes(&self) -> usize {
        if let Self::Recorded(own) = self { own.recording.bytes() } else { 0 }
    }
}

impl Recordings {
    /// How often a recorded pass was launched again.
    #[cfg(test)]
    pub(crate) fn again(&self) -> u64 {
        self.known.again.load(Ordering::Relaxed)
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
        self.is_announced.get_or_init(|| {
            let known: Weak<Known> = Arc::downgrade(&self.known);
            machine.may_give_up(known);
        });
        // Before anything is recorded or launched, so that every recording can give way.
        make_room(sequences)?;
        let (made, progress) = match self.known.take(kind) {
            None => (parts.compute(angles, sequences), Progress::Seen(0)),
            Some(Progress::Seen(0)) => match record(machine, kind, angles, sequences, parts) {
                Ok((made, progress)) => (Ok(made), progress),
                Err(error) => (Err(error), Progress::Seen(0)),
            },
            Some(Progress::Seen(left)) => (parts.compute(angles, sequences), Progress::Seen(left - 1)),
            Some(Progress::Refused) => (parts.compute(angles, sequences), Progress::Refused),
            Some(Progress::Recorded(recorded)) => {
                self.known.again.fetch_add(1, Ordering::Relaxed);
                (recorded.again(machine, angles, sequences, parts.inputs), Progress::Recorded(recorded))
            }
        };
        self.known.put(kind, progress);
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
) -> Result<(Act, Progress)> {
    let layers = sequences.first().map_or(0, |sequence| sequence.states.len());
    let recording = machine.record(kind.tiles, layers, MOST_BYTES);
    let made = parts.compute(angles, sequences)?;
    // What is computed when it is needed is needed now.
    let out = made.rows()?.clone();
    // The pass itself was computed, whatever becomes of its recording.
    let progress = match recording.finish() {
        Ok(recording) => Progress::Recorded(Box::new(Recorded { recording, out })),
        Err(Obstacle::NoRoom) => Progress::Seen(PAUSE),
        Err(Obstacle::Driver(error)) => {
            tell(kind, &format!("{error:#}"));
            Progress::Seen(PAUSE)
        }
        Err(Obstacle::TooLarge) => {
            tell(kind, &format!("they would keep more than {MOST_BYTES} bytes"));
            Progress::Refused
        }
        // Such models do it in every pass, as is documented.
        Err(Obstacle::Other) => Progress::Refused,
    };
    Ok((made, progress))
}

/// Says why passes of a kind are launched one by one.
fn tell(kind: PassKind, why: &str) {
    let positions = kind.tiles * TILE_POSITIONS;
    tracing::warn!(sequences = kind.sequences, positions, why, "passes are launched one by one");
}

impl Recorded {
    fn again(
        &self,
        machine: &Machine,
        angles: &mut Vec<Angles>,
        sequences: &mut [Sequence<'_, Candle>],
        inputs: &mut Inputs<'_, Candle>,
    ) -> Result<Act> {
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
        let State::Cached(cached) = &sequence.states[layer] else { return None };
        Some(Cached::span(&cached.kept, first, 1))
    };
    sequences.iter().enumerate().map(span).collect::<Option<_>>().context("invariant: layers keep what they kept")
}
