//! What kernels are told of the sequences of a pass: where their blocks are, and which queries are put together.

use anyhow::{Context, Result, ensure};

use super::{Attention, CacheRows, CachedSpan, MOST_SHARED, POSITIONS, TILE_POSITIONS};
use crate::arguments::{self, Address, Queries};
use crate::machine::{COUNTERS, Machine, Memory, bytes_of};

/// Blocks of threads that keep a GPU busy.
const BUSY: usize = 256;
/// Shares of a sequence's positions, at most.
const MOST_SHARES: usize = 64;
/// Queries of a block whose scores tensor cores compute, see `attention_tile.cuh`.
const TILE_QUERIES: usize = 64;
/// Such blocks read all positions of a sequence, one tile after the other: fewer of them than this do so for short sequences only, because
/// shares of positions keep more of the device busy.
const ENOUGH: usize = 64;
/// Positions of a short one.
const SHORT: usize = 4096;

/// What kernels are told of the sequences of a pass, on the device.
pub(super) struct Table {
    pub(super) address: Address,
    /// Where blocks are in it.
    pub(super) blocks: usize,
    pub(super) items: Vec<Items>,
    /// It lives until its launches are.
    _memory: Option<Memory>,
}

/// The same before it is there.
pub(crate) struct TableBytes {
    pub(crate) bytes: Vec<u8>,
    blocks: usize,
    items: Vec<Items>,
}

/// What a table depends on besides its sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableShape {
    rows: CacheRows,
    /// Queries of a token that share a key head.
    group: usize,
    /// The room of tiles of queries, where there are such.
    tile_width: Option<usize>,
    window: Option<usize>,
    tokens: usize,
}

/// Queries of some sequences, by as many as are put together.
pub(super) struct Items {
    /// Where they are in the table.
    pub(super) at: usize,
    /// How many.
    pub(super) count: usize,
    pub(super) kind: ItemKind,
}

/// Who computes with queries.
#[derive(Clone, Copy, Debug)]
pub(super) enum ItemKind {
    /// Up to so many, each share of positions by itself.
    Few { rows: usize, shares: usize },
    /// Tiles by tensor cores, with room for so many elements.
    Tile { width: usize },
}

impl Machine {
    /// The table of sequences that have all tokens.
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

    /// Sees to it that spans are all tokens, one after the other, with room for them. With `tiles` the table is alike for all sequences that
    /// have no more of them.
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

/// The queries of sequences, by who computes with them: tiles where a sequence has many, the rest in shares of positions.
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

/// In how many shares the positions of a sequence are computed: as many as keep the device busy.
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

    /// Who computes the queries of a sequence with so many tokens behind others.
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
