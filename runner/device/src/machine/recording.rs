//! Recordings: launches that are recorded while they run, and replayed with a single launch. A
//! replayed pass differs from the recorded one only in its uploads. On a GPU, a recording is a CUDA
//! graph whose nodes are the launches in order.
//!
//! ```text
//! record ──▶ launches run as always, each recorded with its memory ──▶ finish ──▶ Recording
//! refill ──▶ inputs and tables are uploaded to their old places ──▶ replay: all launches
//! ```
//!
//! # Invariants
//! - The memory of recorded launches lives as long as the recording, except for cache blocks, whose
//!   addresses are in tables.
//! - A pass that does anything but our launches (an operation of candle's, a read) is not recorded.
//!   The code that does so calls [`GpuRuntime::cannot_be_recorded`].
//! - One pass is computed at a time.

#![expect(unsafe_code, reason = "what was recorded is written to by its addresses")]

use std::any::Any;
use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;

use crate::arguments::Address;
use crate::attention::{CachedSpan, TableShape};
use crate::machine::launch::Launch;
use crate::machine::{GpuRuntime, Grid, Memory, MemoryPlace, Owner, Steps};

/// An object that a recording keeps alive.
type Used = Box<dyn Any + Send + Sync>;

/// Memory to which numbers of a pass are uploaded.
#[derive(Clone)]
pub(crate) struct UploadTarget {
    tensor: Tensor,
    address: Address,
    count: usize,
}

/// A table of sequences, see [`GpuRuntime::attend`].
struct TableOf {
    /// Layer whose sequences it has, as passed to `attend`.
    layer: usize,
    shape: TableShape,
    /// Offset among all tables.
    at: usize,
    size: usize,
}

/// State of recording.
#[derive(Default)]
pub(crate) enum Recorder {
    /// Launches run without being recorded.
    #[default]
    Off,
    /// Launches run and are recorded.
    On(Box<Draft>),
    /// Inputs are uploaded to the places of a recording.
    Refilling { inputs: Vec<UploadTarget>, next: usize },
}

/// A recording in progress.
pub(crate) struct Draft {
    launches: Vec<Launch>,
    tensors: Vec<Tensor>,
    memory: Vec<Arc<MemoryPlace>>,
    /// Other objects that launches use, such as weights.
    used: Vec<Used>,
    /// Scratch memory that all launches share.
    scratch: Option<Arc<MemoryPlace>>,
    inputs: Vec<UploadTarget>,
    tables: Vec<TableOf>,
    table_memory: Option<Memory>,
    /// Expected number of tables.
    table_count: usize,
    /// Greatest number of position tiles of a sequence.
    tiles: usize,
    bytes: usize,
    most_bytes: usize,
    /// Reason why the launches cannot be replayed.
    obstacle: Option<Obstacle>,
}

/// Reason why launches cannot be replayed.
#[derive(Debug)]
pub enum Obstacle {
    /// The pass did something other than our launches.
    Other,
    /// The recording would keep more memory than allowed.
    TooLarge,
    /// Memory was exhausted; a later attempt may succeed.
    NoRoom,
    /// The driver rejected the launches.
    Driver(anyhow::Error),
}

/// A complete recording.
pub struct Recording {
    /// The machine whose memory it writes to.
    owner: Owner,
    steps: Steps,
    inputs: Vec<UploadTarget>,
    tables: Vec<TableOf>,
    table_memory: Option<Memory>,
    tiles: usize,
    bytes: usize,
    _tensors: Vec<Tensor>,
    _memory: Vec<Arc<MemoryPlace>>,
    _used: Vec<Used>,
    _scratch: Option<Arc<MemoryPlace>>,
}

/// Guard of a recording or refill, which ends when this is dropped or [finished](Self::finish).
pub struct RecordingGuard<'a>(&'a GpuRuntime);

impl Recorder {
    /// Returns the recording in progress, unless it has failed.
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
    /// Returns the approximate amount of memory that it keeps, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl RecordingGuard<'_> {
    /// Ends the recording, and returns it.
    ///
    /// # Errors
    /// The launches cannot be replayed.
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

impl GpuRuntime {
    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts recording launches. Replays support sequences of up to `tiles` tiles of
    /// [`TILE_POSITIONS`](crate::TILE_POSITIONS) positions, and the pass calls `attend`
    /// `table_count` times. Recording fails if it would keep more than `most_bytes` bytes.
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

    /// Notes that the pass does something other than our launches.
    pub fn cannot_be_recorded(&self) {
        if let Some(draft) = self.recorder().draft() {
            draft.give_up(Obstacle::Other);
        }
    }

    /// Uploads numbers of a pass, `[rows, width]`. During a refill, they go to the place that they
    /// had when the recording was made.
    ///
    /// # Errors
    /// Memory is exhausted, there are other inputs than in the recording, or the device has failed.
    pub fn input(&self, [rows, width]: [usize; 2], numbers: &[f32]) -> Result<Tensor> {
        ensure!(numbers.len() == rows * width, "invariant: {rows} rows of {width}, not {} numbers", numbers.len());
        let bytes = crate::machine::bytes_of(numbers);
        if let Recorder::Refilling { inputs, next } = &mut *self.recorder() {
            let input = inputs.get(*next).context("invariant: as many inputs as there were")?;
            ensure!(input.count == numbers.len(), "invariant: {} numbers, not {}", input.count, numbers.len());
            *next += 1;
            // SAFETY: the tensor has as many numbers, and belongs to the recording.
            unsafe { self.write_at(input.address, bytes)? };
            return Ok(input.tensor.clone());
        }
        let mut fresh = self.fresh([rows, width])?;
        let address = fresh.address();
        // SAFETY: it was allocated for as many numbers.
        unsafe { self.write_at(address, bytes)? };
        let tensor = self.tensor(fresh)?;
        if let Some(draft) = self.recorder().draft() {
            // Later inputs usually depend on results of launches.
            if !draft.launches.is_empty() {
                draft.give_up(Obstacle::Other);
                return Ok(tensor);
            }
            draft.inputs.push(UploadTarget { tensor: tensor.clone(), address, count: numbers.len() });
        }
        Ok(tensor)
    }

    /// Calls `inputs`, whose uploads go to the places of the recording's inputs.
    ///
    /// # Errors
    /// `inputs` fails, or there are other inputs than in the recording.
    pub fn refill<T>(&self, recording: &Recording, inputs: impl FnOnce() -> Result<T>) -> Result<T> {
        self.ensure_own(&recording.owner)?;
        *self.recorder() = Recorder::Refilling { inputs: recording.inputs.clone(), next: 0 };
        // Ends the refill on all paths.
        let guard = RecordingGuard(self);
        let made = inputs()?;
        if let Recorder::Refilling { inputs, next } = &*self.recorder() {
            ensure!(*next == inputs.len(), "invariant: {} inputs, not {next}", inputs.len());
        }
        drop(guard);
        Ok(made)
    }

    /// Replays a recording. `spans` returns the current sequences of each layer.
    ///
    /// # Errors
    /// The number of sequences differs, a sequence is longer than was specified, or the device has
    /// failed.
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
            // SAFETY: the memory has this size, and belongs to the recording.
            unsafe { self.write_at(memory.address(), &bytes)? };
        }
        self.run_steps(&recording.steps)
    }

    /// Adds a launch to the recording, if one is in progress.
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

    /// Adds a tensor to the recording, if one is in progress.
    pub(crate) fn note_tensor(&self, tensor: &Tensor) {
        if let Some(draft) = self.recorder().draft() {
            draft.tensors.push(tensor.clone());
            draft.count(tensor.elem_count() * size_of::<f32>());
        }
    }

    /// Adds an object that a launch uses to the recording, if one is in progress.
    pub(crate) fn note_use(&self, used: impl FnOnce() -> Used) {
        if let Some(draft) = self.recorder().draft() {
            draft.used.push(used());
        }
    }

    /// Adds memory to the recording, if one is in progress.
    pub(crate) fn note_memory(&self, memory: &Memory) {
        if let Some(draft) = self.recorder().draft() {
            draft.memory.push(memory.place().clone());
            draft.count(memory.size());
        }
    }

    /// Abandons the recording to free its memory; returns whether one was in progress.
    pub(crate) fn give_up_recording(&self) -> bool {
        self.recorder().draft().map(|draft| draft.give_up(Obstacle::NoRoom)).is_some()
    }

    /// Returns memory for a single launch.
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

    /// Returns the number of tiles that tables must support, if a recording is in progress.
    pub(crate) fn recorded_tiles(&self) -> Option<usize> {
        self.recorder().draft().map(|draft| draft.tiles)
    }

    /// Uploads a table, and returns its address: a place among the tables of the recording if one
    /// is in progress, else a memory of its own.
    pub(crate) fn place_table(
        &self,
        layer: usize,
        shape: TableShape,
        bytes: &[u8],
    ) -> Result<(Option<Memory>, Address)> {
        let is_first = |draft: &&mut Draft| draft.table_memory.is_none();
        let count = self.recorder().draft().filter(is_first).map(|draft| draft.table_count);
        if let Some(count) = count {
            // Tables have the same size, except for a few items.
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
            // SAFETY: the table is within the memory of all tables, as was checked.
            unsafe { self.write_at(address, bytes)? };
            return Ok((None, address));
        }
        let memory = self.upload(bytes)?;
        let address = memory.address();
        Ok((Some(memory), address))
    }
}

/// Alignment of tables in bytes.
const ALIGNED: usize = 16;
/// Number of bytes by which a table may exceed the first one.
const SLACK: usize = 256;

impl Draft {
    fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes > self.most_bytes {
            self.give_up(Obstacle::TooLarge);
        }
    }

    /// Frees everything that was kept, except tables: the current pass still uses their addresses.
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
