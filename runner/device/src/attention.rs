//! Attention to cached keys and values: heads are normed, turned and kept, then queries attend, all sequences of a pass at once.

mod table;

use anyhow::{Result, ensure};
use architectures::blueprint::BLOCK;
use candle_core::Tensor;
use protocol::KvType;

use crate::arguments::{self, Address, AttendArguments, Heads, KeepArguments};
use crate::machine::{COUNTERS, Grid, Machine, Memory};
use crate::rows::{RUN, Rounded};
pub(crate) use table::TableShape;
use table::{ItemKind, Items, Table};

/// Positions that a block of a cache has room for.
const POSITIONS: usize = BLOCK as usize;
const _: () = assert!(POSITIONS == 256, "as `cache.cuh` has it");
/// Threads of a block, see `attention.cuh`.
const THREADS: usize = 128;
/// Positions that they score at a time.
pub const TILE_POSITIONS: usize = THREADS;
/// Threads of a warp.
const LANES: usize = 32;
/// The widest values that are mixed.
const MOST_VALUE: usize = 5 * THREADS;
/// Shared memory that queries may take.
const MOST_SHARED: usize = 38 << 10;
/// The widths of heads whose scores tensor cores compute, see `attention_tile.cuh`.
const TILE_WIDTHS: [usize; 3] = [64, 128, 256];
/// Elements that are loaded together there.
const EIGHT: usize = 8;

/// The rows of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRows {
    /// Heads of keys.
    pub kv_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value that has a row of its own; 0 where it is the first elements of its key.
    pub value_dim: usize,
    /// How they are kept.
    pub kind: KvType,
}

/// The tokens of a sequence in a pass, and the blocks of its cache.
#[derive(Clone, Debug)]
pub struct CachedSpan<'a> {
    /// The first among those of the pass.
    pub first: usize,
    /// How many.
    pub tokens: usize,
    /// Position of the first in the sequence.
    pub position: usize,
    /// Position of the first row of the first block.
    pub start: usize,
    /// Blocks with room for all positions up to the last.
    pub blocks: Vec<&'a Memory>,
}

/// Heads before attention, `[tokens, heads · width]`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// The rows.
    pub x: &'a Tensor,
    /// The root mean square norm of each head: weights of `[turns, width]`, heads take turns; what is added to the mean square.
    pub norm: Option<(&'a Tensor, f32)>,
    /// How a part of each head is turned, after its norm.
    pub turn: Option<Turn<'a>>,
}

/// The rotation of a part of each head.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// `[tokens, half]`.
    pub cosines: &'a Tensor,
    /// `[tokens, half]`.
    pub sines: &'a Tensor,
    /// Whether two elements that are turned together lie side by side, and not half of the part apart.
    pub is_interleaved: bool,
    /// The first element of the part.
    pub first: usize,
}

/// How queries attend.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Heads of queries.
    pub heads: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Positions that a token sees, its own among them.
    pub window: Option<usize>,
    /// Whether tokens see none behind them.
    pub is_causal: bool,
    /// `[heads]`.
    pub sinks: Option<&'a Tensor>,
    /// Never round floats for tensor cores: for whoever compares.
    pub is_exact: bool,
}

impl Attention<'_> {
    /// The elements that tiles of queries have room for; `None` where there are no tiles for such heads.
    fn tile_width(&self, rows: CacheRows) -> Option<usize> {
        let widest = rows.key_dim.max(self.value_dim);
        let is_whole =
            [rows.key_dim, rows.value_dim, self.value_dim].into_iter().all(|width| width.is_multiple_of(EIGHT));
        TILE_WIDTHS.into_iter().find(|width| is_whole && !self.is_exact && widest <= *width)
    }
}

impl CacheRows {
    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        let row = [self.key_dim, self.value_dim].map(|width| self.kind.row_bytes(width as u64) as usize);
        POSITIONS * self.kv_heads * row.iter().sum::<usize>()
    }

    fn argument(self) -> arguments::Cache {
        let [kv_heads, key_dim, value_dim] = [self.kv_heads, self.key_dim, self.value_dim].map(|size| size as u32);
        arguments::Cache { kv_heads, key_dim, value_dim, unused: 0 }
    }
}

impl Machine {
    /// Whether there are kernels for such heads.
    pub fn can_attend(rows: CacheRows) -> bool {
        // Values without rows of their own are at most as wide as keys.
        let value_dim = if rows.value_dim == 0 { rows.key_dim } else { rows.value_dim };
        value_dim <= MOST_VALUE && rows.key_dim * size_of::<f32>() <= MOST_SHARED
    }

    /// Keeps keys and values, and lets queries attend to those of their sequences: `[tokens, heads · value_dim]`,
    /// and the same rounded for products where values are whole runs of 32. `layer` is what a recording will ask for sequences by.
    ///
    /// # Errors
    /// Shapes do not fit one another, a sequence has no room, or the device has failed.
    #[expect(unsafe_code, reason = "kernels are launched")]
    pub fn attend(
        &self,
        attention: Attention<'_>,
        rows: CacheRows,
        [queries, keys]: [HeadRows<'_>; 2],
        values: Option<&Tensor>,
        spans: &[CachedSpan<'_>],
        layer: usize,
    ) -> Result<(Tensor, Option<Rounded>)> {
        let Attention { heads, value_dim, .. } = attention;
        let tokens = queries.x.dims2()?.0;
        ensure!(Self::can_attend(rows), "heads of {} are too wide", rows.key_dim);
        ensure!(rows.kv_heads > 0 && heads.is_multiple_of(rows.kv_heads), "{heads} heads share {}", rows.kv_heads);
        ensure!(values.is_some() == (rows.value_dim > 0), "invariant: values that are kept are given");
        let widest = if rows.value_dim > 0 { rows.value_dim } else { rows.key_dim };
        ensure!(value_dim <= widest, "invariant: values are of {widest}, not {value_dim}");
        let table = self.table(attention, rows, tokens, spans, layer)?;
        let mut kept = self.fresh([tokens, heads * rows.key_dim])?;
        let mut all = [
            self.heads(queries, heads, rows.key_dim, tokens)?,
            self.heads(keys, rows.kv_heads, rows.key_dim, tokens)?,
            Heads { turns: 1, ..Heads::default() },
        ];
        if let Some(values) = values {
            all[2] =
                self.heads(HeadRows { x: values, norm: None, turn: None }, rows.kv_heads, rows.value_dim, tokens)?;
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
        // SAFETY: heads are of `tokens` rows as was seen, spans have all tokens and blocks room for their positions, see `table`.
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
            // SAFETY: items are rows of spans, queries and what is written have rows for all tokens, shares have room for all places, and
            // blocks were seen to have the positions that are seen.
            unsafe { self.launch(&kernel, grid, &arguments)? };
        }
        Ok((self.tensor(out)?, rounded))
    }

    /// Heads for kernels.
    fn heads(&self, heads: HeadRows<'_>, count: usize, width: usize, tokens: usize) -> Result<Heads> {
        ensure!(heads.x.dims() == [tokens, count * width], "invariant: {count} heads of {width}, not {:?}", heads.x);
        let mut own = Heads {
            x: self.address(heads.x, tokens * count * width)?,
            count: count as u32,
            width: width as u32,
            turns: 1,
            ..Heads::default()
        };
        if let Some((weight, epsilon)) = heads.norm {
            let turns = weight.elem_count() / width;
            ensure!(
                turns > 0 && turns * width == weight.elem_count() && count.is_multiple_of(turns),
                "invariant: norms of heads"
            );
            (own.norm, own.epsilon, own.turns) = (self.address(weight, turns * width)?, epsilon, turns as u32);
        }
        if let Some(Turn { cosines, sines, is_interleaved, first }) = heads.turn {
            let (rows, half) = cosines.dims2()?;
            let fits = rows == tokens && sines.dims() == cosines.dims() && first + 2 * half <= width;
            ensure!(fits, "invariant: heads of {width} are turned from {first} on by {half} angles of each token");
            (own.cosines, own.sines) = (self.address(cosines, rows * half)?, self.address(sines, rows * half)?);
            (own.half, own.turned_first) = (half as u32, first as u32);
            own.is_interleaved = u32::from(is_interleaved);
        }
        Ok(own)
    }
}
