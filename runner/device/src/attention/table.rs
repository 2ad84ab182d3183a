//! Tables for attention kernels: the cache blocks of the sequences of a pass, and the queries that
//! are computed together.

use anyhow::{Context, Result, ensure};

use super::{Attention, CacheRows, CachedSpan, MOST_SHARED, POSITIONS, TILE_POSITIONS};
use crate::arguments::{self, Address, Queries};
use crate::machine::{COUNTERS, GpuRuntime, Memory, bytes_of};

/// Number of thread blocks that keep a GPU busy.
const BUSY: usize = 256;
/// Greatest number of shares into which the positions of a sequence are divided.
const MOST_SHARES: usize = 64;
/// Number of queries in a thread block that uses tensor cores, see `attention_tile.cuh`.
const TILE_QUERIES: usize = 64;
/// Number of such thread blocks from which they are used for long sequences, too. Each of them
/// reads all positions of a sequence, tile by tile. With fewer blocks, dividing the positions into
/// shares keeps more of the device busy.
const ENOUGH: usize = 64;
/// Greatest number of positions of a short sequence.
const SHORT: usize = 4096;

/// The table of the sequences of a pass, on the device.
pub(super) struct Table {
    pub(super) address: Address,
    /// Offset of the block addresses in the table.
    pub(super) blocks: usize,
    pub(super) items: Vec<Items>,
    /// Keeps the table until its launches are complete.
    _memory: Option<Memory>,
}

/// The table before it is uploaded.
pub(crate) struct TableBytes {
    pub(crate) bytes: Vec<u8>,
    blocks: usize,
    items: Vec<Items>,
}

/// Parameters of a table, besides its sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableShape {
    rows: CacheRows,
    /// Number of query heads that share a key head.
    group: usize,
    /// Head width of the tile kernel, if there is one.
    tile_width: Option<usize>,
    window: Option<usize>,
    tokens: usize,
}

/// Groups of queries that one kernel computes.
pub(super) struct Items {
    /// Offset of the items in the table.
    pub(super) at: usize,
    /// Number of items.
    pub(super) count: usize,
    pub(super) kind: ItemKind,
}

/// Kernel that computes items.
#[derive(Clone, Copy, Debug)]
pub(super) enum ItemKind {
    /// Items of up to `rows` queries, with the positions divided into `shares`.
    Few { rows: usize, shares: usize },
    /// Tiles for tensor cores, for heads of up to `width` elements.
    Tile { width: usize },
}

impl GpuRuntime {
    /// Creates the table of sequences that together have all tokens of the pass.
    pub(super) fn table(
        &self,
        attention: Attention<'_>,
        rows: CacheRows,
        tokens: usize,
        spans: &[CachedSpan<'_>],
        layer: usize,
    ) -> Result<Table> {
        let (group, tile_width) = (attention.heads / rows.kv_heads, attention.tile_width(rows));
        let shape = TableShape { rows, group, tile_width, window: attention.window, tokens };
        let TableBytes { bytes, blocks, items } = self.table_bytes(shape, spans, self.recorded_tiles())?;
        let (memory, address) = self.place_table(layer, shape, &bytes)?;
        Ok(Table { address, blocks, items, _memory: memory })
    }

    /// Creates the bytes of a table. Checks that the spans cover all tokens in order, and that
    /// there are blocks for them. With `tiles`, the layout of the table is the same for all
    /// sequences of up to that many tiles.
    pub(crate) fn table_bytes(
        &self,
        shape: TableShape,
        spans: &[CachedSpan<'_>],
        tiles: Option<usize>,
    ) -> Result<TableBytes> {
        let TableShape { rows, tokens, .. } = shape;
        let (mut next, mut places, mut blocks) = (0, Vec::new(), Vec::new());
        for span in spans {
            let end = span.position.checked_add(span.tokens).context("a position beyond all")?;
            let has_room = span.start <= span.position && end - span.start <= span.blocks.len() * POSITIONS;
            let is_room = span.blocks.iter().all(|block| block.size() >= rows.block_bytes());
            span.blocks.iter().try_for_each(|block| self.ensure_own(block.owner()))?;
            ensure!(span.first == next && span.tokens > 0 && has_room && is_room, "invariant: room for {span:?}");
            next += span.tokens;
            let [first, own, position, start] = [span.first, span.tokens, span.position, span.start].map(u32::try_from);
            let block = u32::try_from(blocks.len())?;
            places.push(arguments::Span {
                first: first?,
                tokens: own?,
                position: position?,
                start: start?,
                block,
                unused: 0,
            });
            let needed = (end - span.start).div_ceil(POSITIONS);
            blocks.extend(span.blocks[..needed].iter().map(|block| block.address()));
            if let Some(tiles) = tiles {
                let most = (tiles * TILE_POSITIONS).div_ceil(POSITIONS);
                ensure!(needed <= most, "invariant: {needed} blocks of a sequence, not more than {most}");
                blocks.resize(block as usize + most, Address::NONE);
            }
        }
        ensure!(next == tokens, "invariant: sequences have all {tokens} tokens");
        let mut bytes = bytes_of(&places).to_vec();
        let mut part = |own: &[u8]| {
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            bytes.extend_from_slice(own);
            bytes.len() - own.len()
        };
        let blocks = part(bytes_of(&blocks));
        let items = items(shape, spans, tiles).into_iter();
        let items = items.map(|(own, kind)| Items { at: part(bytes_of(&own)), count: own.len(), kind }).collect();
        Ok(TableBytes { bytes, blocks, items })
    }
}

/// Divides the queries of sequences among the kernels: tiles for sequences with many queries,
/// shares of positions for the rest.
fn items(shape: TableShape, spans: &[CachedSpan<'_>], tiles: Option<usize>) -> Vec<(Vec<Queries>, ItemKind)> {
    let TableShape { rows, group, tile_width: width, .. } = shape;
    let is_tile = |span: &CachedSpan<'_>| {
        let queries = span.tokens * group;
        let blocks = queries.div_ceil(TILE_QUERIES) * rows.kv_heads;
        let is_short = span.position + span.tokens - span.start <= SHORT;
        width.is_some() && span.tokens > 1 && queries >= TILE_QUERIES && (blocks >= ENOUGH || is_short)
    };
    let own = |wanted: usize, tiles: bool| -> Vec<Queries> {
        let own = (0..).zip(spans).filter(|(_, span)| is_tile(span) == tiles);
        let each = |(sequence, span): (u32, &CachedSpan<'_>)| {
            (0..span.tokens * group).step_by(wanted).map(move |first| Queries { sequence, first: first as u32 })
        };
        own.flat_map(each).collect()
    };
    let mut all = Vec::with_capacity(2);
    if let Some(width) = width.filter(|_| spans.iter().any(is_tile)) {
        all.push((own(TILE_QUERIES, true), ItemKind::Tile { width }));
    }
    if let Some(most) = spans.iter().filter(|span| !is_tile(span)).map(|span| span.tokens * group).max() {
        let fits = |own: &usize| own * rows.key_dim * size_of::<f32>() <= MOST_SHARED;
        let wanted = [16, 4, 1].into_iter().find(|own| most * 2 > *own && fits(own)).unwrap_or(1);
        let few = own(wanted, false);
        let places = (few.len() * rows.kv_heads).max(1);
        let shares = shares(shape, places, spans.iter().filter(|span| !is_tile(span)), tiles);
        all.push((few, ItemKind::Few { rows: wanted, shares }));
    }
    all
}

/// Returns the number of shares into which positions are divided: enough to keep the device busy.
fn shares<'a>(
    shape: TableShape,
    places: usize,
    spans: impl Iterator<Item = &'a CachedSpan<'a>>,
    tiles: Option<usize>,
) -> usize {
    let seen = |span: &CachedSpan<'_>| {
        let kept = tiles.map_or(span.position + span.tokens - span.start, |tiles| tiles * TILE_POSITIONS);
        shape.window.map_or(kept, |window| kept.min(window + span.tokens))
    };
    let tiles = spans.map(seen).max().unwrap_or(1).div_ceil(TILE_POSITIONS).max(1);
    if places > COUNTERS { 1 } else { BUSY.div_ceil(places).min(tiles).min(MOST_SHARES) }
}

#[cfg(test)]
mod tests {
    use protocol::KvType;

    use super::*;

    /// Returns the kernel for a sequence of `tokens` tokens after `position` earlier ones.
    fn kind(kv_heads: usize, group: usize, tokens: usize, position: usize) -> ItemKind {
        let rows = CacheRows { kv_heads, key_dim: 64, value_dim: 64, kind: KvType::F16 };
        let shape = TableShape { rows, group, tile_width: Some(64), window: None, tokens };
        let span = CachedSpan { first: 0, tokens, position, start: 0, blocks: Vec::new() };
        let mut all = items(shape, &[span], None);
        assert_eq!(all.len(), 1);
        all.remove(0).1
    }

    #[test]
    fn tiles_are_for_prompts_that_keep_a_device_busy_or_are_short() {
        assert!(matches!(kind(8, 4, 256, 100_000), ItemKind::Tile { .. }), "128 blocks");
        assert!(matches!(kind(8, 4, 64, 1000), ItemKind::Tile { .. }), "32 blocks of some positions");
        assert!(matches!(kind(8, 4, 64, 32_000), ItemKind::Few { shares: 2.., .. }), "32 blocks of many");
        assert!(matches!(kind(1, 71, 1, 30_000), ItemKind::Few { shares: 32.., .. }), "a token, whatever its heads");
        assert!(matches!(kind(8, 1, 32, 0), ItemKind::Few { .. }), "fewer queries than a tile has");
    }
}
