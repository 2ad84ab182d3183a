//! Recordings of decode passes, in which each sequence has one token.
//!
//! The launches of such a pass depend only on the number of sequences and on their greatest
//! possible length. So a pass is recorded when its kind occurs for the second time, and replayed
//! with a single launch from then on.

#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use anyhow::{Result, bail};
use candle_core::Tensor;
use device::{CachedSpan, GpuRuntime, Obstacle, Recording, Spare, TILE_POSITIONS};
use protocol::KvType;
use protocol::limits::DEVICE_RECORDINGS;

use super::act::Act;
use super::state::State;
use super::state::cached::Cached;
use super::{Angles, Candle};
use crate::backend::{Inputs, PassExecution, PassParts, StageSequences};

/// Greatest memory that one recording may keep, in bytes.
const MOST_BYTES: usize = DEVICE_RECORDINGS / 2;
/// Number of passes of a kind that are launched kernel by kernel after a failed recording, before
/// the next attempt.
const PAUSE: u32 = if cfg!(test) { 4 } else { 1000 };

/// Records and replays the decode passes of a stage.
#[derive(Debug, Default)]
pub(crate) struct RecordedExecution {
    known: Arc<Known>,
    /// Set once the recordings are registered with the machine as memory that can be freed.
    is_announced: OnceLock<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// Least recently used first; without the pass that is being computed.
    passes: Mutex<Vec<Pass>>,
    /// Number of replays.
    #[cfg(test)]
    replays: AtomicU64,
}

#[derive(Debug)]
struct Pass {
    kind: PassKind,
    progress: RecordingProgress,
}

/// Facts on which the launches of a pass depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassKind {
    sequences: usize,
    /// Tiles of positions of the longest sequence, rounded up to a power of two.
    tiles: usize,
    /// Type of the KV cache.
    kv_type: KvType,
}

#[derive(Debug)]
enum RecordingProgress {
    /// The kind has occurred; it is recorded after this number of further passes.
    Seen(u32),
    /// The pass does something that cannot be recorded.
    Refused,
    Recorded(Box<Recorded>),
}

#[derive(Debug)]
struct Recorded {
    recording: Recording,
    /// Output of the last layer.
    out: Tensor,
}

impl PassKind {
    /// Returns `None` if a sequence has more than one token in the pass, or one of a prompt, which
    /// may be a row of a picture with rows behind layers; if a layer keeps a state
    /// other than keys and values for our kernels, or if the stage has no layers.
    fn of(sequences: &StageSequences<'_, Candle>) -> Option<Self> {
        let (mut longest, mut kv_type) = (0, None);
        for sequence in sequences.sequences {
            for states in &*sequences.layers {
                let State::Cached(cached) = states.get(sequence.id).ok()? else { return None };
                longest = longest.max(cached.kept.length + 1);
                // All layers of all sequences have the same type.
                kv_type = Some(cached.room.kv_type());
            }
            if sequence.span.tokens != 1 || sequence.span.is_prompt {
                return None;
            }
        }
        let tiles = longest.div_ceil(TILE_POSITIONS).next_power_of_two();
        Some(Self { sequences: sequences.sequences.len(), tiles, kv_type: kv_type? })
    }
}

impl Known {
    fn passes(&self) -> MutexGuard<'_, Vec<Pass>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the progress of a kind.
    fn take(&self, kind: PassKind) -> Option<RecordingProgress> {
        let mut all = self.passes();
        let at = all.iter().position(|pass| pass.kind == kind)?;
        Some(all.remove(at).progress)
    }

    /// Stores the progress of a kind. Evicts the least recently used recordings while all of them
    /// exceed [`DEVICE_RECORDINGS`].
    fn put(&self, kind: PassKind, progress: RecordingProgress) {
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
                pass.progress = RecordingProgress::Seen(PAUSE);
                is_less = true;
            }
        }
        is_less
    }
}

impl RecordingProgress {
    fn bytes(&self) -> usize {
        if let Self::Recorded(own) = self { own.recording.bytes() } else { 0 }
    }
}

impl PassExecution<Candle> for RecordedExecution {
    /// Replays the recording of the pass, or launches the kernels one by one.
    fn compute(
        &self,
        backend: &Candle,
        angles: &mut Vec<Angles>,
        sequences: &mut StageSequences<'_, Candle>,
        parts: PassParts<'_, Candle>,
    ) -> Result<Act> {
        let machine = backend.kernels.as_ref().filter(|kernels| kernels.records).map(|kernels| &kernels.machine);
        let Some((machine, kind)) = machine.zip(PassKind::of(sequences)) else {
            return parts.compute(angles, sequences);
        };
        self.is_announced.get_or_init(|| {
            let known: Weak<Known> = Arc::downgrade(&self.known);
            machine.may_give_up(known);
        });
        // KV blocks are allocated before anything is recorded or launched, so that every recording
        // can be evicted for them.
        make_room(sequences)?;
        let (made, progress) = match self.known.take(kind) {
            None => (parts.compute(angles, sequences), RecordingProgress::Seen(0)),
            Some(RecordingProgress::Seen(0)) => match record(machine, kind, angles, sequences, parts) {
                Ok((made, progress)) => (Ok(made), progress),
                Err(error) => (Err(error), RecordingProgress::Seen(0)),
            },
            Some(RecordingProgress::Seen(left)) => {
                (parts.compute(angles, sequences), RecordingProgress::Seen(left - 1))
            }
            Some(RecordingProgress::Refused) => (parts.compute(angles, sequences), RecordingProgress::Refused),
            Some(RecordingProgress::Recorded(recorded)) => {
                #[cfg(test)]
                self.known.replays.fetch_add(1, Ordering::Relaxed);
                (recorded.again(machine, angles, sequences, parts.inputs), RecordingProgress::Recorded(recorded))
            }
        };
        self.known.put(kind, progress);
        made
    }

    #[cfg(test)]
    fn replays(&self) -> u64 {
        self.known.replays.load(Ordering::Relaxed)
    }
}

/// Computes a pass and records its launches.
fn record(
    machine: &GpuRuntime,
    kind: PassKind,
    angles: &mut Vec<Angles>,
    sequences: &mut StageSequences<'_, Candle>,
    parts: PassParts<'_, Candle>,
) -> Result<(Act, RecordingProgress)> {
    let recording = machine.record(kind.tiles, sequences.layers.len(), MOST_BYTES);
    let made = parts.compute(angles, sequences)?;
    // The recording must contain the pending computations, so they are executed now.
    let out = made.rows()?.clone();
    // The pass itself is computed, even if its recording fails.
    let progress = match recording.finish() {
        Ok(recording) => RecordingProgress::Recorded(Box::new(Recorded { recording, out })),
        Err(Obstacle::NoRoom) => RecordingProgress::Seen(PAUSE),
        Err(Obstacle::Driver(error)) => {
            tell(kind, &format!("{error:#}"));
            RecordingProgress::Seen(PAUSE)
        }
        Err(Obstacle::TooLarge) => {
            tell(kind, &format!("a recording would exceed {MOST_BYTES} bytes"));
            RecordingProgress::Refused
        }
        // Such models do so in every pass, as documented; no warning.
        Err(Obstacle::Other) => RecordingProgress::Refused,
    };
    Ok((made, progress))
}

/// Logs why passes of a kind are launched kernel by kernel.
fn tell(kind: PassKind, why: &str) {
    let positions = kind.tiles * TILE_POSITIONS;
    tracing::warn!(
        sequences = kind.sequences,
        positions,
        why,
        "passes are not recorded; kernels are launched individually"
    );
}

impl Recorded {
    fn again(
        &self,
        machine: &GpuRuntime,
        angles: &mut Vec<Angles>,
        sequences: &mut StageSequences<'_, Candle>,
        inputs: &mut Inputs<'_, Candle>,
    ) -> Result<Act> {
        machine.refill(&self.recording, || inputs(angles))?;
        machine.replay(&self.recording, |layer| spans(sequences, layer))?;
        each_cached(sequences, |cached| {
            cached.kept.length += 1;
            Ok(())
        })?;
        Ok(Act::of(self.out.clone()))
    }
}

/// Allocates the blocks for the next token of each sequence in all layers. This memory does not
/// belong to a recording.
fn make_room(sequences: &mut StageSequences<'_, Candle>) -> Result<()> {
    each_cached(sequences, |Cached { kept, room }| kept.make_room(1, room))
}

/// Calls `each` with the keys and values of every sequence in every layer.
fn each_cached(
    sequences: &mut StageSequences<'_, Candle>,
    mut each: impl FnMut(&mut Cached) -> Result<()>,
) -> Result<()> {
    for states in &mut *sequences.layers {
        for sequence in sequences.sequences {
            if let State::Cached(cached) = states.get_mut(sequence.id)? {
                each(cached)?;
            }
        }
    }
    Ok(())
}

fn spans<'a>(sequences: &'a StageSequences<'_, Candle>, layer: usize) -> Result<Vec<CachedSpan<'a>>> {
    let states = &sequences.layers[layer];
    let spans = sequences.sequences.iter().enumerate().map(|(first, sequence)| match states.get(sequence.id)? {
        State::Cached(cached) => Ok(Cached::span(&cached.kept, first, 1)),
        _ => bail!("invariant: layers keep the kind of state that they had when the pass was recorded"),
    });
    spans.collect()
}
