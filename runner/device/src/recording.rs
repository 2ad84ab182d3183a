//! Launches that are recorded while they run, so that they can be launched again all at once: for a pass that is like one before but for what is
//! uploaded. On a GPU it is a graph of the driver's, whose nodes are the launches in their order.
//!
//! ```text
//! record ──▶ launches, as always, each written down with its memory ──▶ finish ──▶ Recording
//! refill ──▶ inputs and tables go where they were ──▶ replay: all launches
//! ```
//!
//! # Invariants
//! - What launches of a recording work on lives as long as the recording, but for blocks of caches: tables say where these are.
//! - A pass that does something else than launches of ours (an operation of candle's, reading) is not recorded; who does such a thing says so.
//! - One pass is computed at a time.

#![expect(unsafe_code, reason = "what was recorded is written to by its addresses")]

use std::any::Any;
use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;

use crate::arguments::Address;
use crate::attention::{CachedSpan, TableShape};
use crate::machine::{Grid, Machine, Memory, Owner, Place, Steps};

/// A launch that was written down.
pub(crate) struct Launch {
    pub(crate) kernel: String,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: usize,
    pub(crate) shared: usize,
    /// The bytes of its arguments, at a multiple of 8.
    pub(crate) arguments: Vec<u64>,
    pub(crate) size: usize,
}

/// Something that lives as long as a recording.
type Used = Box<dyn Any + Send + Sync>;

/// Where numbers of a pass are uploaded to.
#[derive(Clone)]
pub(crate) struct Input {
    tensor: Tensor,
    address: Address,
    count: usize,
}

/// A table of sequences, see [`Machine::attend`].
struct TableOf {
    /// Whose sequences it has, as who attends has said.
    layer: usize,
    shape: TableShape,
    /// Where it is among all tables.
    at: usize,
    size: usize,
}

/// What is being done with launches.
#[derive(Default)]
pub(crate) enum Recorder {
    /// They are launched.
    #[default]
    Off,
    /// They are launched and written down.
    On(Box<Draft>),
    /// Inputs go where they were.
    Refilling { inputs: Vec<Input>, next: usize },
}

/// A recording on its way.
pub(crate) struct Draft {
    launches: Vec<Launch>,
    tensors: Vec<Tensor>,
    memory: Vec<Arc<Place>>,
    /// What launches work on besides, as weights.
    used: Vec<Used>,
    /// Memory that every launch may use as it likes.
    scratch: Option<Arc<Place>>,
    inputs: Vec<Input>,
    tables: Vec<TableOf>,
    table_memory: Option<Memory>,
    /// Tables that there will be.
    table_count: usize,
    /// Tiles of positions that sequences have, at most.
    tiles: usize,
    bytes: usize,
    most_bytes: usize,
    /// Why it cannot be launched again.
    obstacle: Option<Obstacle>,
}

/// Why launches cannot be launched again.
#[derive(Debug)]
pub enum Obstacle {
    /// Something was done that is no launch of ours.
    Other,
    /// They would keep more memory than they may.
    TooLarge,
    /// There was no memory beside them: some other time there may be.
    NoRoom,
    /// The driver refuses them.
    Driver(anyhow::Error),
}

/// What was recorded.
pub struct Recording {
    /// Whose memory it writes to.
    owner: Owner,
    steps: Steps,
    inputs: Vec<Input>,
    tables: Vec<TableOf>,
    table_memory: Option<Memory>,
    tiles: usize,
    bytes: usize,
    _tensors: Vec<Tensor>,
    _memory: Vec<Arc<Place>>,
    _used: Vec<Used>,
    _scratch: Option<Arc<Place>>,
}

/// Something is recorded or refilled as long as this is there, or until it is [finished](Self::finish).
pub struct RecordingGuard<'a>(&'a Machine);

impl Recorder {
    /// What is recorded, where that is of use.
    fn draft(&mut self) -> Option<&mut Draft> {
        match self {
            Self::On(draft) if draft.obstacle.is_none() => Some(draft),
            _ => None,
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Recording {
    /// Bytes of memory that it keeps, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl RecordingGuard<'_> {
    /// What was launched since then.
    ///
    /// # Errors
    /// Why it cannot be launched again.
    pub fn finish(self) -> Result<Recording, Obstacle> {
        let taken = std::mem::take(&mut *self.0.recorder());
        let Recorder::On(mut draft) = taken else { return Err(Obstacle::Other) };
        if let Some(obstacle) = draft.obstacle.take() {
            return Err(obstacle);
        }
        let Draft { launches, tensors, memory, used, scratch, inputs, tables, table_memory, tiles, bytes, .. } = *draft;
        let steps = self.0.steps(launches).map_err(Obstacle::Driver)?;
        Ok(Recording {
            owner: self.0.owner().clone(),
            steps,
            inputs,
            tables,
            table_memory,
            tiles,
            bytes,
            _tensors: tensors,
            _memory: memory,
            _used: used,
            _scratch: scratch,
        })
    }
}

impl Drop for RecordingGuard<'_> {
    fn drop(&mut self) {
        *self.0.recorder() = Recorder::Off;
    }
}

impl Machine {
    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what is launched from now on. Sequences have up to so many tiles of [`TILE_POSITIONS`](crate::TILE_POSITIONS) positions when it is
    /// launched again, and it attends so often. A recording that would keep more than `most_bytes` is none.
    pub fn record(&self, tiles: usize, table_count: usize, most_bytes: usize) -> RecordingGuard<'_> {
        *self.recorder() = Recorder::On(Box::new(Draft {
            launches: Vec::new(),
            tensors: Vec::new(),
            memory: Vec::new(),
            used: Vec::new(),
            scratch: None,
            inputs: Vec::new(),
            tables: Vec::new(),
            table_memory: None,
            table_count,
            tiles,
            bytes: 0,
            most_bytes,
            obstacle: None,
        }));
        RecordingGuard(self)
    }

    /// Something is done now that is no launch of ours.
    pub fn cannot_be_recorded(&self) {
        if let Some(draft) = self.recorder().draft() {
            draft.give_up(Obstacle::Other);
        }
    }

    /// Numbers of a pass, `[rows, width]`: where a recording is refilled, they go where they were when it was made.
    ///
    /// # Errors
    /// There is no memory; there are other inputs than there were; the device has failed.
    pub fn input(&self, [rows, width]: [usize; 2], numbers: &[f32]) -> Result<Tensor> {
        ensure!(numbers.len() == rows * width, "invariant: {rows} rows of {width}, not {} numbers", numbers.len());
        let bytes = crate::machine::bytes_of(numbers);
        if let Recorder::Refilling { inputs, next } = &mut *self.recorder() {
            let input = inputs.get(*next).context("invariant: as many inputs as there were")?;
            ensure!(input.count == numbers.len(), "invariant: {} numbers, not {}", input.count, numbers.len());
            *next += 1;
            // SAFETY: the tensor has as many numbers, and is the recording's.
            unsafe { self.write_at(input.address, bytes)? };
            return Ok(input.tensor.clone());
        }
        let mut fresh = self.fresh([rows, width])?;
        let address = fresh.address();
        // SAFETY: it was made for as many numbers.
        unsafe { self.write_at(address, bytes)? };
        let tensor = self.tensor(fresh)?;
        if let Some(draft) = self.recorder().draft() {
            // What comes later is made of what launches have made, as a rule.
            if !draft.launches.is_empty() {
                draft.give_up(Obstacle::Other);
                return Ok(tensor);
            }
            draft.inputs.push(Input { tensor: tensor.clone(), address, count: numbers.len() });
        }
        Ok(tensor)
    }

    /// Has inputs that `inputs` makes go where those of the recording are.
    ///
    /// # Errors
    /// What `inputs` says; there are other inputs than there were.
    pub fn refill<T>(&self, recording: &Recording, inputs: impl FnOnce() -> Result<T>) -> Result<T> {
        self.ensure_own(&recording.owner)?;
        *self.recorder() = Recorder::Refilling { inputs: recording.inputs.clone(), next: 0 };
        // Whatever happens, it does so for these inputs only.
        let guard = RecordingGuard(self);
        let made = inputs()?;
        if let Recorder::Refilling { inputs, next } = &*self.recorder() {
            ensure!(*next == inputs.len(), "invariant: {} inputs, not {next}", inputs.len());
        }
        drop(guard);
        Ok(made)
    }

    /// Launches all of a recording, with the sequences of each layer as they are now.
    ///
    /// # Errors
    /// Sequences are not as many, or longer than was said; the device has failed.
    pub fn replay<'a>(
        &self,
        recording: &Recording,
        mut spans: impl FnMut(usize) -> Result<Vec<CachedSpan<'a>>>,
    ) -> Result<()> {
        self.ensure_own(&recording.owner)?;
        if let Some(memory) = &recording.table_memory {
            let mut bytes = vec![0; memory.size()];
            for TableOf { layer, shape, at, size } in &recording.tables {
                let spans = spans(*layer)?;
                let table = self.table_bytes(*shape, &spans, Some(recording.tiles))?;
                ensure!(table.bytes.len() == *size, "invariant: a table of {size} bytes, not {}", table.bytes.len());
                bytes[*at..*at + *size].copy_from_slice(&table.bytes);
            }
            // SAFETY: it is as long, and the recording's.
            unsafe { self.write_at(memory.address(), &bytes)? };
        }
        self.run_steps(&recording.steps)
    }

    /// Keeps a launch, where somebody records.
    pub(crate) fn note_launch(&self, kernel: &str, grid: Grid, blocks: [u32; 3], arguments: &[u8]) {
        if let Some(draft) = self.recorder().draft() {
            let size = arguments.len();
            let mut words = vec![0_u64; size.div_ceil(size_of::<u64>())];
            for (word, bytes) in words.iter_mut().zip(arguments.chunks(size_of::<u64>())) {
                let mut own = [0; size_of::<u64>()];
                own[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(own);
            }
            let Grid { threads, shared, .. } = grid;
            draft.launches.push(Launch { kernel: kernel.to_owned(), blocks, threads, shared, arguments: words, size });
        }
    }

    /// Keeps a tensor, where somebody records.
    pub(crate) fn note_tensor(&self, tensor: &Tensor) {
        if let Some(draft) = self.recorder().draft() {
            draft.tensors.push(tensor.clone());
            draft.count(tensor.elem_count() * size_of::<f32>());
        }
    }

    /// Keeps what a launch works on, where somebody records.
    pub(crate) fn note_use(&self, used: impl FnOnce() -> Used) {
        if let Some(draft) = self.recorder().draft() {
            draft.used.push(used());
        }
    }

    /// Keeps memory, where somebody records.
    pub(crate) fn note_memory(&self, memory: &Memory) {
        if let Some(draft) = self.recorder().draft() {
            draft.memory.push(memory.place().clone());
            draft.count(memory.size());
        }
    }

    /// Gives up recording, so that there is memory; whether somebody recorded.
    pub(crate) fn give_up_recording(&self) -> bool {
        self.recorder().draft().map(|draft| draft.give_up(Obstacle::NoRoom)).is_some()
    }

    /// Memory for one launch.
    pub(crate) fn scratch(&self, size: usize) -> Result<Memory> {
        if let Some(draft) = self.recorder().draft()
            && let Some(place) = &draft.scratch
            && let Some(memory) = self.part_of(place, size)
        {
            return Ok(memory);
        }
        let memory = self.memory(size)?;
        if let Some(draft) = self.recorder().draft() {
            draft.scratch = Some(memory.place().clone());
        }
        Ok(memory)
    }

    /// The tiles of positions that tables are for, where somebody records.
    pub(crate) fn recorded_tiles(&self) -> Option<usize> {
        self.recorder().draft().map(|draft| draft.tiles)
    }

    /// Where a table is, which is one of all that a recording has; uploaded by itself where nobody records.
    pub(crate) fn place_table(
        &self,
        layer: usize,
        shape: TableShape,
        bytes: &[u8],
    ) -> Result<(Option<Memory>, Address)> {
        let is_first = |draft: &&mut Draft| draft.table_memory.is_none();
        let count = self.recorder().draft().filter(is_first).map(|draft| draft.table_count);
        if let Some(count) = count {
            // They are alike but for a few items.
            let memory = self.memory(count * (bytes.len().next_multiple_of(ALIGNED) + SLACK))?;
            if let Some(draft) = self.recorder().draft() {
                draft.table_memory = Some(memory);
            }
        }
        let mut place = None;
        if let Some(draft) = self.recorder().draft()
            && let Some(memory) = &draft.table_memory
        {
            let at = draft.tables.last().map_or(0, |last| (last.at + last.size).next_multiple_of(ALIGNED));
            if at + bytes.len() <= memory.size() {
                place = Some(memory.address().after(at));
                draft.tables.push(TableOf { layer, shape, at, size: bytes.len() });
            } else {
                draft.give_up(Obstacle::TooLarge);
            }
        }
        if let Some(address) = place {
            // SAFETY: the table is within the memory of all, as was seen.
            unsafe { self.write_at(address, bytes)? };
            return Ok((None, address));
        }
        let memory = self.upload(bytes)?;
        let address = memory.address();
        Ok((Some(memory), address))
    }
}

/// Tables begin at multiples of it.
const ALIGNED: usize = 16;
/// Bytes by which tables may be longer than the first.
const SLACK: usize = 256;

impl Draft {
    fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes > self.most_bytes {
            self.give_up(Obstacle::TooLarge);
        }
    }

    /// What was kept is let go, but for tables: the pass that is being computed has their addresses.
    fn give_up(&mut self, obstacle: Obstacle) {
        self.obstacle = Some(obstacle);
        self.scratch = None;
        self.launches.clear();
        self.tensors.clear();
        self.memory.clear();
        self.used.clear();
        self.inputs.clear();
        self.most_bytes = usize::MAX;
    }
}
