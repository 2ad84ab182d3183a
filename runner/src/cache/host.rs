//! Keys and values in memory: for each layer its keys, then its values; of those head after head; of a head row after
//! row, one for each position.

use anyhow::{Context, Result};
use memmap2::MmapMut;

use super::{CacheShape, Half};
use crate::kernels::attention::{CacheRows, encode_row, row_bytes};

/// The cache of a slot in memory.
#[derive(Debug)]
pub(crate) struct HostCache {
    /// Memory of no file, zero until it is written; given back when it is dropped.
    memory: MmapMut,
    shape: CacheShape,
    row_bytes: usize,
}

impl HostCache {
    pub(super) fn new(shape: CacheShape) -> Result<Self> {
        let bytes = shape.bytes();
        let memory = usize::try_from(bytes).ok().and_then(|bytes| MmapMut::map_anon(bytes.max(1)).ok());
        let memory =
            memory.with_context(|| format!("there is no memory for {bytes} bytes of KV cache; choose less context"))?;
        Ok(Self { memory, shape, row_bytes: row_bytes(shape.kv_type, shape.head_dim) })
    }

    /// The first byte of a head.
    fn offset(&self, layer: usize, half: Half, head: usize) -> usize {
        let halves = 2 * layer + usize::from(half == Half::Values);
        (halves * self.shape.kv_heads + head) * self.shape.context * self.row_bytes
    }

    /// The rows of positions `from..to` of a head.
    pub(crate) fn rows(&self, layer: usize, half: Half, head: usize, from: usize, to: usize) -> CacheRows<'_> {
        assert!(from <= to && to <= self.shape.context, "positions of the context");
        let offset = self.offset(layer, half, head);
        let bytes = &self.memory[offset + from * self.row_bytes..offset + to * self.row_bytes];
        CacheRows::new(self.shape.kv_type, self.shape.head_dim, bytes)
    }

    /// Writes `[tokens, kv_heads, head_dim]` at a position.
    pub(crate) fn write(&mut self, layer: usize, half: Half, position: usize, x: &[f32]) {
        let CacheShape { kv_heads, head_dim, context, kv_type, .. } = self.shape;
        for (token, heads) in x.chunks_exact(kv_heads * head_dim).enumerate() {
            assert!(position + token < context, "a position of the context");
            for (head, row) in heads.chunks_exact(head_dim).enumerate() {
                let at = self.offset(layer, half, head) + (position + token) * self.row_bytes;
                encode_row(kv_type, row, &mut self.memory[at..at + self.row_bytes]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::KvType;

    use super::*;

    #[test]
    fn rows_lie_apart() {
        let shape = CacheShape { layers: 2, kv_heads: 3, head_dim: 32, context: 4, kv_type: KvType::F32 };
        let mut cache = HostCache::new(shape).expect("a small cache");
        let value = |layer: usize, half: Half, position: usize, head: usize| {
            (layer * 1000 + usize::from(half == Half::Values) * 500 + position * 10 + head) as f32
        };
        for layer in 0..2 {
            for half in [Half::Keys, Half::Values] {
                let x: Vec<f32> =
                    (0..4 * 3).flat_map(|i| std::iter::repeat_n(value(layer, half, i / 3, i % 3), 32)).collect();
                cache.write(layer, half, 0, &x[..3 * 3 * 32]);
                cache.write(layer, half, 3, &x[3 * 3 * 32..]);
            }
        }
        for (layer, head, position) in (0..2 * 3 * 4).map(|i| (i / 12, i / 4 % 3, i % 4)) {
            for half in [Half::Keys, Half::Values] {
                let mut row = vec![0.0; 32];
                cache.rows(layer, half, head, position, position + 1).decode(&mut row);
                assert_eq!(row, vec![value(layer, half, position, head); 32]);
            }
        }
    }
}
