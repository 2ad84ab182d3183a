//! Attention to cached keys and values, for all sequences of a pass. One kernel applies norms and
//! RoPE to heads and stores keys and values; then queries attend.

mod table;

use anyhow::{Result, ensure};
use architectures::blueprint::BLOCK;
use candle_core::Tensor;
use protocol::KvType;

use crate::arguments::{self, Address, AttendArguments, Heads, KeepArguments};
use crate::machine::{COUNTERS, GpuRuntime, Grid, Memory};
use crate::rows::{RUN, Rounded};
pub(crate) use table::TableShape;
use table::{ItemKind, Items, Table};

/// Number of positions in a block of a cache.
const POSITIONS: usize = BLOCK as usize;
const _: () = assert!(POSITIONS == 256, "as `cache.cuh` has it");
/// Number of threads in a block, see `attention.cuh`.
const THREADS: usize = 128;
/// Number of positions that a thread block scores at a time.
pub const TILE_POSITIONS: usize = THREADS;
/// Number of threads in a warp.
const LANES: usize = 32;
/// Greatest number of elements of a value.
const MOST_VALUE: usize = 5 * THREADS;
/// Greatest amount of shared memory for queries, in bytes.
const MOST_SHARED: usize = 38 << 10;
/// Head widths of the tensor core kernels, see `attention_tile.cuh`.
const TILE_WIDTHS: [usize; 3] = [64, 128, 256];
/// Number of elements that these kernels load at once.
const EIGHT: usize = 8;

/// Shape of the cache rows of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRows {
    /// Number of key heads.
    pub kv_heads: usize,
    /// Number of elements of a key.
    pub key_dim: usize,
    /// Number of elements of a value with rows of its own; 0 if values are the first elements of
    /// keys.
    pub value_dim: usize,
    /// Storage type of the cache.
    pub kind: KvType,
}

/// The rows of the tokens of a pass.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// `[tokens, heads · key_dim]`.
    pub queries: HeadRows<'a>,
    /// `[tokens, kv_heads · key_dim]`; `None` if the cache has the keys and values of the tokens.
    pub keys: Option<HeadRows<'a>>,
    /// `[tokens, kv_heads · value_dim]`; `None` if values are the first elements of keys.
    pub values: Option<&'a Tensor>,
}

/// The tokens of a sequence in a pass, and the blocks of its cache.
#[derive(Clone, Debug)]
pub struct CachedSpan<'a> {
    /// Index of the first token in the pass.
    pub first: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// Position of the first token in the sequence.
    pub position: usize,
    /// Position of the first row of the first block.
    pub start: usize,
    /// Blocks for all positions up to the last token.
    pub blocks: Vec<&'a Memory>,
}

/// Heads before attention, `[tokens, heads · width]`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// The rows.
    pub x: &'a Tensor,
    /// RMS norm of each head, and its epsilon. Weights are `[weight_rows, width]`; heads alternate
    /// among them.
    pub norm: Option<(&'a Tensor, f32)>,
    /// Rotary embedding of a part of each head, after the norm.
    pub rotary: Option<Rotary<'a>>,
}

/// Rotary embedding of a part of each head.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// `[tokens, half]`.
    pub cosines: &'a Tensor,
    /// `[tokens, half]`.
    pub sines: &'a Tensor,
    /// Whether the two elements of a pair are adjacent, instead of half of the part apart.
    pub is_interleaved: bool,
    /// First element of the part.
    pub first: usize,
}

/// Parameters of attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Number of query heads.
    pub heads: usize,
    /// Number of elements of a value.
    pub value_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// If set, scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Number of positions that a token sees, including its own.
    pub window: Option<usize>,
    /// Number of positions of a chunk: a token sees only its own chunk.
    pub chunk: Option<usize>,
    /// Whether tokens do not see later positions.
    pub is_causal: bool,
    /// Attention sinks, `[heads]`.
    pub sinks: Option<&'a Tensor>,
    /// Whether floats are never rounded to the types of tensor cores. Set for comparisons.
    pub is_exact: bool,
}

impl Attention<'_> {
    /// Returns the head width of the tile kernel; `None` if there is none for these heads.
    fn tile_width(&self, rows: CacheRows) -> Option<usize> {
        let widest = rows.key_dim.max(self.value_dim);
        let is_whole =
            [rows.key_dim, rows.value_dim, self.value_dim].into_iter().all(|width| width.is_multiple_of(EIGHT));
        TILE_WIDTHS.into_iter().find(|width| is_whole && !self.is_exact && widest <= *width)
    }
}

impl CacheRows {
    /// Returns the size of a block in bytes.
    pub fn block_bytes(self) -> usize {
        let row = [self.key_dim, self.value_dim].map(|width| self.kind.row_bytes(width as u64) as usize);
        POSITIONS * self.kv_heads * row.iter().sum::<usize>()
    }

    fn argument(self) -> arguments::Cache {
        let [kv_heads, key_dim, value_dim] = [self.kv_heads, self.key_dim, self.value_dim].map(|size| size as u32);
        arguments::Cache { kv_heads, key_dim, value_dim, unused: 0 }
    }
}

impl GpuRuntime {
    /// Returns whether there are kernels for heads of these shapes.
    pub fn can_attend(rows: CacheRows) -> bool {
        // Values without rows of their own are at most as wide as keys.
        let value_dim = if rows.value_dim == 0 { rows.key_dim } else { rows.value_dim };
        value_dim <= MOST_VALUE && rows.key_dim * size_of::<f32>() <= MOST_SHARED
    }

    /// Stores keys and values, and computes attention for each query in its sequence. Returns
    /// `[tokens, heads · value_dim]`, and the same rounded for products if `value_dim` is a
    /// multiple of 32. A recording uses `layer` to request the sequences of this call.
    ///
    /// # Errors
    /// Shapes do not match, a sequence lacks blocks, or the device has failed.
    #[expect(unsafe_code, reason = "kernels are launched")]
    pub fn attend(
        &self,
        attention: Attention<'_>,
        rows: CacheRows,
        AttentionInput { queries, keys, values }: AttentionInput<'_>,
        spans: &[CachedSpan<'_>],
        layer: usize,
    ) -> Result<(Tensor, Option<Rounded>)> {
        let Attention { heads, value_dim, .. } = attention;
        let tokens = queries.x.dims2()?.0;
        ensure!(Self::can_attend(rows), "heads of {} are too wide", rows.key_dim);
        ensure!(rows.kv_heads > 0 && heads.is_multiple_of(rows.kv_heads), "{heads} heads share {}", rows.kv_heads);
        let has_values = keys.is_some() && rows.value_dim > 0;
        ensure!(values.is_some() == has_values, "invariant: values that are kept are given");
        let widest = if rows.value_dim > 0 { rows.value_dim } else { rows.key_dim };
        ensure!(value_dim <= widest, "invariant: values are of {widest}, not {value_dim}");
        let table = self.table(attention, rows, tokens, spans, layer)?;
        let mut kept = self.fresh([tokens, heads * rows.key_dim])?;
        let mut all = [
            self.heads(queries, heads, rows.key_dim, tokens)?,
            Heads { weight_rows: 1, ..Heads::default() },
            Heads { weight_rows: 1, ..Heads::default() },
        ];
        if let Some(keys) = keys {
            all[1] = self.heads(keys, rows.kv_heads, rows.key_dim, tokens)?;
        }
        if let Some(values) = values {
            all[2] =
                self.heads(HeadRows { x: values, norm: None, rotary: None }, rows.kv_heads, rows.value_dim, tokens)?;
        }
        let (spans_at, blocks) = (table.address, table.address.after(table.blocks));
        let keep = KeepArguments {
            heads: all,
            cache: rows.argument(),
            spans: spans_at,
            blocks,
            queries: kept.address(),
            tokens: tokens as u32,
            unused: 0,
        };
        let warps = tokens * all.iter().map(|own| own.count as usize).sum::<usize>();
        let grid = Grid { blocks: [warps.div_ceil(THREADS / LANES), 1, 1], threads: THREADS, shared: 0 };
        // SAFETY: heads have `tokens` rows, as was checked. Spans cover all tokens, and blocks have
        // room for their positions, see `table`.
        unsafe { self.launch(&format!("keep_{}", rows.kind.name()), grid, &keep)? };
        let kept = self.tensor(kept)?;
        self.mixed(attention, rows, &table, &kept)
    }

    #[expect(unsafe_code, reason = "a kernel is launched")]
    fn mixed(
        &self,
        attention: Attention<'_>,
        rows: CacheRows,
        table: &Table,
        queries: &Tensor,
    ) -> Result<(Tensor, Option<Rounded>)> {
        let Attention { heads, value_dim, .. } = attention;
        let tokens = queries.dims2()?.0;
        let rounded =
            value_dim.is_multiple_of(RUN).then(|| self.room_for_rounded([tokens, heads * value_dim])).transpose()?;
        let mut out = self.fresh([tokens, heads * value_dim])?;
        if let Some(sinks) = attention.sinks {
            ensure!(sinks.elem_count() == heads, "invariant: a sink for each head");
        }
        let arguments = AttendArguments {
            cache: rows.argument(),
            spans: table.address,
            blocks: table.address.after(table.blocks),
            items: Address::NONE,
            queries: self.address(queries, tokens * heads * rows.key_dim)?,
            sinks: attention.sinks.map_or(Ok(Address::NONE), |sinks| self.address(sinks, heads))?,
            out: out.address(),
            codes: rounded.as_ref().map_or(Address::NONE, |rounded| rounded.codes.address()),
            factors: rounded.as_ref().map_or(Address::NONE, |rounded| rounded.factors.address()),
            shares: Address::NONE,
            done: self.counters()?,
            scale: attention.scale,
            soft_cap: attention.soft_cap.unwrap_or(0.0),
            heads: heads as u32,
            value_width: value_dim as u32,
            window: attention.window.unwrap_or(0) as u32,
            chunk: attention.chunk.unwrap_or(0) as u32,
            is_causal: u32::from(attention.is_causal),
        };
        for Items { at, count, kind } in &table.items {
            let name = rows.kind.name();
            let (kernel, share_count, shared, room) = match kind {
                ItemKind::Few { rows: own, shares } => {
                    let places = count * rows.kv_heads;
                    ensure!(*shares == 1 || places <= COUNTERS, "invariant: as many counters as places");
                    let room = if *shares == 1 { 0 } else { places * shares * own * (value_dim + 2) };
                    (format!("attend_{own}_{name}"), *shares, own * rows.key_dim * size_of::<f32>(), room)
                }
                ItemKind::Tile { width } => (format!("attend_tile_{width}_{name}"), 1, 0, 0),
            };
            let share_memory = (room > 0).then(|| self.scratch(room * size_of::<f32>())).transpose()?;
            let arguments = AttendArguments {
                items: table.address.after(*at),
                shares: share_memory.as_ref().map_or(Address::NONE, Memory::address),
                ..arguments
            };
            let grid = Grid { blocks: [*count, share_count, rows.kv_heads], threads: THREADS, shared };
            // SAFETY: items refer to rows of spans; queries and results have rows for all tokens;
            // shares have room for all places; blocks contain all visible positions, as was
            // checked.
            unsafe { self.launch(&kernel, grid, &arguments)? };
        }
        Ok((self.tensor(out)?, rounded))
    }

    /// Returns the kernel argument for heads.
    fn heads(&self, heads: HeadRows<'_>, count: usize, width: usize, tokens: usize) -> Result<Heads> {
        ensure!(heads.x.dims() == [tokens, count * width], "invariant: {count} heads of {width}, not {:?}", heads.x);
        let mut own = Heads {
            x: self.address(heads.x, tokens * count * width)?,
            count: count as u32,
            width: width as u32,
            weight_rows: 1,
            ..Heads::default()
        };
        if let Some((weight, epsilon)) = heads.norm {
            let weight_rows = weight.elem_count() / width;
            ensure!(
                weight_rows > 0 && weight_rows * width == weight.elem_count() && count.is_multiple_of(weight_rows),
                "invariant: norms of heads"
            );
            (own.norm, own.epsilon, own.weight_rows) =
                (self.address(weight, weight_rows * width)?, epsilon, weight_rows as u32);
        }
        if let Some(Rotary { cosines, sines, is_interleaved, first }) = heads.rotary {
            let (rows, half) = cosines.dims2()?;
            let fits = rows == tokens && sines.dims() == cosines.dims() && first + 2 * half <= width;
            ensure!(fits, "invariant: heads of {width} are turned from {first} on by {half} angles of each token");
            (own.cosines, own.sines) = (self.address(cosines, rows * half)?, self.address(sines, rows * half)?);
            (own.half, own.rotary_first) = (half as u32, first as u32);
            own.is_interleaved = u32::from(is_interleaved);
        }
        Ok(own)
    }
}
