//! State that layers keep of a sequence, as tensors.
//!
//! Keys and values are in tensors that grow by doubling, so a slot takes as much memory as its
//! longest sequence needed. A layer with a sliding window keeps the last positions only: when they
//! reach the end of the tensors, they are moved to the front of new ones.

pub(super) mod cached;

use anyhow::{Context, Result, bail};
use architectures::LayerState;
use candle_core::{DType, Device, Tensor};
use protocol::KvType;
use protocol::limits::{AHEAD, CHUNK};

use self::cached::{Cached, unsupported};
use crate::backend::{Shift, StateShape};
use crate::backends::checkpoints::Checkpoints;
use crate::failure;

/// Initial capacity of the tensors, in positions.
const FIRST: usize = 256;

/// State that one layer keeps of one sequence.
#[derive(Debug)]
pub(crate) enum State {
    /// Keys and values in blocks, for our kernels.
    Cached(Cached),
    /// Keys and values as candle tensors.
    Kv(Kv),
    /// Compressed entries.
    Entries(Entries),
    /// State of layers whose state does not grow.
    Recurrent(Recurrent),
    /// No state: each token is computed without the others.
    Stateless,
    /// No state: the layer sees whole texts.
    Nothing,
}

/// Keys and values of a layer.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "the names of the field")]
pub(crate) struct Kv {
    /// Keys and values, `[kv_heads, room, dim]`; no values if they are the first elements of the
    /// keys.
    halves: [Option<Tensor>; 2],
    kv_heads: usize,
    dims: [usize; 2],
    dtype: DType,
    device: Device,
    /// Greatest number of positions that the tensors may hold.
    most: usize,
    window: Option<usize>,
    /// Position of the first row.
    start: usize,
    /// Position of the next token.
    length: usize,
}

/// State of fixed size.
#[derive(Clone, Debug)]
pub(crate) struct Recurrent {
    /// All numbers of the state after `length` tokens, flattened. Tensors are never written to, so
    /// copies are free.
    pub(super) numbers: Tensor,
    pub(super) length: usize,
    saved: Checkpoints<Tensor>,
    /// The state of an empty sequence.
    zeros: Tensor,
}

impl State {
    pub(super) fn new(shape: StateShape, device: &Device, reference: bool) -> Result<Self> {
        let kv = |kv_heads: u64, dims: [u64; 2], window: Option<u64>| -> Result<Kv> {
            let dtype = match shape.kv_type {
                _ if reference => DType::F32,
                KvType::F32 => DType::F32,
                KvType::F16 => DType::F16,
                KvType::Bf16 => DType::BF16,
                KvType::Q8_0 => return Err(unsupported(shape.kv_type)),
            };
            Ok(Kv {
                halves: [None, None],
                kv_heads: kv_heads as usize,
                dims: dims.map(|size| size as usize),
                dtype,
                device: device.clone(),
                most: shape.state.positions(shape.context as u64, AHEAD as u64) as usize,
                window: window.map(|window| window as usize),
                start: 0,
                length: 0,
            })
        };
        Ok(match shape.state {
            LayerState::Kv { kv_heads, key_dim, value_dim, window } => {
                Self::Kv(kv(kv_heads, [key_dim, value_dim], window)?)
            }
            LayerState::Entries { width, every } => {
                Self::Entries(Entries { kv: kv(1, [width, 0], None)?, every: every as usize, length: 0 })
            }
            LayerState::Recurrent { numbers } => {
                let zeros = Tensor::zeros(numbers as usize, DType::F32, device)?;
                Self::Recurrent(Recurrent { numbers: zeros.clone(), length: 0, saved: Checkpoints::new(), zeros })
            }
            LayerState::Stateless => Self::Stateless,
            LayerState::Nothing => Self::Nothing,
        })
    }
}

impl crate::backend::State for State {
    fn nearest(&self, length: usize) -> usize {
        match self {
            Self::Cached(own) => own.kept.nearest(length),
            Self::Kv(kv) => kv.nearest(length),
            Self::Entries(own) => length.min(own.length),
            Self::Recurrent(state) => state.saved.nearest(state.length, length),
            Self::Stateless => length,
            Self::Nothing => 0,
        }
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Self::Cached(own) => own.kept.truncate(length),
            Self::Kv(kv) => kv.truncate(length),
            Self::Entries(own) => own.truncate(length),
            Self::Recurrent(state) if state.length == length => {}
            Self::Recurrent(state) => {
                state.numbers = state.saved.back_to(length).unwrap_or(&state.zeros).clone();
                state.length = length;
            }
            Self::Stateless | Self::Nothing => {}
        }
    }

    fn checkpoint(&mut self) {
        if let Self::Recurrent(state) = self {
            state.saved.push(state.length, |_| state.numbers.clone());
        }
    }

    fn can_shift(&self, _shift: &Shift<'_>) -> bool {
        false
    }

    fn shift(&mut self, _shift: &Shift<'_>) -> Result<()> {
        bail!("invariant: states on a device are computed anew")
    }

    fn share(&self, length: usize) -> Option<Self> {
        match self {
            Self::Cached(own) => own.share(length).map(Self::Cached),
            // The tensors of a recurrent state are never written to, so another sequence can share
            // them.
            Self::Recurrent(own) if own.saved.nearest(own.length, length) == length => {
                let mut shared = Self::Recurrent(own.clone());
                shared.truncate(length);
                Some(shared)
            }
            Self::Stateless => Some(Self::Stateless),
            _ => None,
        }
    }
}

/// Compressed entries of a layer, in the rows of keys.
#[derive(Debug)]
pub(crate) struct Entries {
    pub(super) kv: Kv,
    /// Number of positions of a segment, which has one entry.
    every: usize,
    /// Position of the next token.
    length: usize,
}

impl Entries {
    /// Appends the rows of those tokens that complete a segment, of `[tokens, width]`.
    pub(super) fn append(&mut self, rows: &Tensor) -> Result<()> {
        let tokens = rows.dim(0)?;
        let complete = (0..tokens).filter(|token| (self.length + token + 1).is_multiple_of(self.every));
        let complete: Vec<u32> = complete.map(|token| token as u32).collect();
        if !complete.is_empty() {
            let rows = rows.index_select(&Tensor::new(complete, rows.device())?, 0)?;
            self.kv.append(&rows.unsqueeze(0)?, None)?;
        }
        self.length += tokens;
        Ok(())
    }

    fn truncate(&mut self, length: usize) {
        self.length = length.min(self.length);
        self.kv.truncate(self.length / self.every);
    }
}

impl Kv {
    /// Creates a state for a text that is computed in one pass.
    pub(super) fn of_text(kv_heads: usize, dims: [usize; 2], tokens: usize, device: &Device) -> Self {
        let (dtype, device) = (DType::F32, device.clone());
        Self { halves: [None, None], kv_heads, dims, dtype, device, most: tokens, window: None, start: 0, length: 0 }
    }

    /// Appends `[kv_heads, tokens, dim]` keys and values.
    pub(super) fn append(&mut self, keys: &Tensor, values: Option<&Tensor>) -> Result<()> {
        let tokens = keys.dim(1)?;
        self.make_room(tokens)?;
        for (half, x) in self.halves.iter().zip([Some(keys), values]) {
            if let (Some(half), Some(x)) = (half, x) {
                half.slice_set(&x.to_dtype(self.dtype)?.contiguous()?, 1, self.length - self.start)?;
            }
        }
        self.length += tokens;
        Ok(())
    }

    /// Returns keys (`half` = 0) or values (1) of positions `from..to` as float32,
    /// `[kv_heads, to - from, dim]`.
    pub(super) fn rows(&self, half: usize, from: usize, to: usize) -> Result<Tensor> {
        let whole = self.halves[half].as_ref().context("invariant: something was appended")?;
        Ok(whole.narrow(1, from - self.start, to - from)?.to_dtype(DType::F32)?)
    }

    /// Makes room for `tokens` positions: grows the tensors, or drops positions outside of the
    /// window.
    fn make_room(&mut self, tokens: usize) -> Result<()> {
        let room = self.halves[0].as_ref().map_or(0, |keys| keys.dims()[1]);
        let used = self.length - self.start;
        if used + tokens <= room {
            return Ok(());
        }
        let kept = match self.window {
            Some(window) => used.min(window + (AHEAD - CHUNK)),
            None => used,
        };
        let needed = kept + tokens;
        let target = needed.max(2 * room).max(FIRST).min(self.most.max(needed));
        // Allocates both tensors before replacing either, so that the state stays usable if memory
        // is exhausted.
        let mut halves = [None, None];
        for ((new, old), dim) in halves.iter_mut().zip(&self.halves).zip(self.dims) {
            if dim > 0 {
                *new = Some(self.moved(old.as_ref(), used - kept, kept, (target, dim))?);
            }
        }
        self.halves = halves;
        self.start = self.length - kept;
        Ok(())
    }

    /// Allocates a tensor of `rows` positions that begins with `kept` positions of `old`, starting
    /// at `from`.
    fn moved(&self, old: Option<&Tensor>, from: usize, kept: usize, (rows, dim): (usize, usize)) -> Result<Tensor> {
        let new = Tensor::zeros((self.kv_heads, rows, dim), self.dtype, &self.device);
        let new = new.with_context(|| format!("cannot allocate a KV cache of {rows} tokens on the device"));
        let new = new.map_err(|error| failure::out_of_memory(&error))?;
        if let Some(old) = old.filter(|_| kept > 0) {
            new.slice_set(&old.narrow(1, from, kept)?.contiguous()?, 1, 0)?;
        }
        Ok(new)
    }

    fn nearest(&self, length: usize) -> usize {
        let length = length.min(self.length);
        let needed = self.window.map_or(0, |window| (length + 1).saturating_sub(window));
        if self.start <= needed { length } else { 0 }
    }

    fn truncate(&mut self, length: usize) {
        if length == 0 {
            self.start = 0;
        }
        self.length = length.max(self.start);
    }
}
