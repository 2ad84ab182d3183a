//! Keys and values in device memory for our kernels: blocks of positions, in the type of the cache.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use architectures::LayerState;
use device::{Attention, AttentionInput, CacheRows, CachedSpan, GpuRuntime, Memory};
use protocol::KvType;

use super::super::act::Act;
use super::super::{Candle, Kernels};
use super::State;
use crate::backend::{Attend, LayerSequences, Values};
use crate::backends::blocks::{BlockAllocator, Blocks};
use crate::failure;

/// Keys and values of a layer.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(in crate::backends::candle) kept: Blocks<Memory>,
    pub(in crate::backends::candle) room: DeviceBlocks,
}

/// Allocates blocks on the device.
#[derive(Clone, Debug)]
pub(in crate::backends::candle) struct DeviceBlocks {
    machine: GpuRuntime,
    rows: CacheRows,
}

impl DeviceBlocks {
    pub(in crate::backends::candle) fn kv_type(&self) -> KvType {
        self.rows.kind
    }
}

impl BlockAllocator for DeviceBlocks {
    type Block = Memory;

    fn block(&self) -> Result<Memory> {
        let bytes = self.rows.block_bytes();
        let block = self.machine.memory(bytes);
        let block = block.with_context(|| {
            format!("cannot allocate {bytes} bytes of KV cache on the device; use a shorter context or fewer slots")
        });
        block.map_err(|error| failure::out_of_memory(&error))
    }

    fn copy(&self, from: &Memory, to: &mut Memory) -> Result<()> {
        self.machine.copy(from, to)
    }
}

impl Cached {
    /// Creates the state of a layer for a new sequence. Returns `None` if the layer is not
    /// attention, or if there are no kernels for its heads.
    pub(in crate::backends::candle) fn new(machine: &GpuRuntime, state: LayerState, kv_type: KvType) -> Option<Self> {
        let LayerState::Kv { kv_heads, key_dim, value_dim, window } = state else { return None };
        let [kv_heads, key_dim, value_dim] = [kv_heads, key_dim, value_dim].map(|size| size as usize);
        let rows = CacheRows { kv_heads, key_dim, value_dim, kind: kv_type };
        GpuRuntime::can_attend(rows).then(|| Self {
            kept: Blocks::new(window.map(|window| window as usize)),
            room: DeviceBlocks { machine: machine.clone(), rows },
        })
    }

    /// Returns the arguments of the kernels for `tokens` tokens; `first` is the index of the first
    /// of them in the pass.
    pub(in crate::backends::candle) fn span(kept: &Blocks<Memory>, first: usize, tokens: usize) -> CachedSpan<'_> {
        let blocks = kept.all.iter().map(Arc::as_ref).collect();
        CachedSpan { first, tokens, position: kept.length, start: kept.start, blocks }
    }

    /// Returns the state of the first `length` tokens, if the next token would still see every
    /// position that it may see.
    pub(in crate::backends::candle) fn share(&self, length: usize) -> Option<Self> {
        let kept = self.kept.share(length)?;
        Some(Self { kept, room: self.room.clone() })
    }
}

/// Computes attention for the tokens of all sequences; `None` if a state is not for our kernels.
pub(in crate::backends::candle) fn attend(
    kernels: &Kernels,
    attend: &Attend<'_, Candle>,
    [query, key, value]: [&Act; 3],
    sequences: &mut LayerSequences<'_, Candle>,
) -> Result<Option<Act>> {
    let machine = &kernels.machine;
    let value_dim = if attend.values == Values::Own { attend.value_dim } else { 0 };
    let text = CacheRows { kv_heads: attend.kv_heads, key_dim: attend.key_dim, value_dim, kind: KvType::F32 };
    // Texts that are seen at once have keys and values for this call only.
    let (mut texts, mut rows) = (Vec::new(), text);
    for sequence in sequences.sequences {
        match sequences.states.get_mut(sequence.id)? {
            State::Cached(own) => {
                let Cached { kept, room } = own;
                if !attend.reads_only {
                    kept.make_room(sequence.span.tokens, room)?;
                }
                rows = room.rows;
            }
            State::Nothing if GpuRuntime::can_attend(text) => {
                let mut kept = Blocks::new(None);
                kept.make_room(sequence.span.tokens, &DeviceBlocks { machine: machine.clone(), rows: text })?;
                texts.push(kept);
            }
            _ => return Ok(None),
        }
    }
    let mut next_text = texts.iter();
    let mut spans = Vec::with_capacity(sequences.sequences.len());
    for sequence in sequences.sequences {
        let span = sequence.span;
        let kept = match sequences.states.get(sequence.id)? {
            State::Cached(own) => &own.kept,
            _ => next_text.next().context("invariant: each text has its blocks")?,
        };
        spans.push(CachedSpan { position: span.position, ..Cached::span(kept, span.first, span.tokens) });
    }
    let attention = Attention {
        heads: attend.heads,
        value_dim: attend.value_dim,
        scale: attend.scale,
        soft_cap: attend.soft_cap,
        window: attend.window,
        chunk: attend.chunk,
        // Sequences with one token are the same either way, and at most one has more.
        is_causal: sequences.sequences.iter().all(|sequence| attend.is_causal(sequence.span)),
        sinks: attend.sinks,
        is_exact: kernels.is_exact,
    };
    let query = query.heads(attend.key_dim)?;
    let key = if attend.reads_only { None } else { Some(key.heads(attend.key_dim)?) };
    let values = if value_dim > 0 && !attend.reads_only { Some(value.rows()?) } else { None };
    let input = AttentionInput { queries: query.rows(), keys: key.as_ref().map(|key| key.rows()), values };
    let (mixed, rounded) = machine.attend(attention, rows, input, &spans, sequences.layer)?;
    drop(spans);
    if attend.reads_only {
        return Ok(Some(Act::with_rounded(mixed, rounded)));
    }
    for sequence in sequences.sequences {
        if let State::Cached(own) = sequences.states.get_mut(sequence.id)? {
            own.kept.length += sequence.span.tokens;
        }
    }
    Ok(Some(Act::with_rounded(mixed, rounded)))
}

/// Returns the error for a cache type that this model does not support on this device.
pub(in crate::backends::candle) fn unsupported(kv_type: KvType) -> anyhow::Error {
    let name = kv_type.name();
    let reason =
        anyhow!("KV cache type {name} is not supported for this model on this device; use f16, or the device `cpu`");
    failure::unsupported(&reason)
}
