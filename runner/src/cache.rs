//! The KV cache: keys and values of every position, layer by layer.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

/// The cache of one layer.
#[derive(Debug)]
pub(crate) struct LayerCache {
    /// `[kv_heads, context, head_dim]`, float32.
    pub(crate) keys: Tensor,
    /// The same of values.
    pub(crate) values: Tensor,
}

impl LayerCache {
    fn new(kv_heads: usize, context: usize, head_dim: usize, device: &Device) -> Result<Self> {
        let zeros = || Tensor::zeros((kv_heads, context, head_dim), DType::F32, device);
        Ok(Self { keys: zeros()?, values: zeros()? })
    }

    /// Writes `[kv_heads, tokens, head_dim]` at a position.
    pub(crate) fn append(&mut self, keys: &Tensor, values: &Tensor, position: usize) -> Result<()> {
        self.keys.slice_set(&keys.contiguous()?, 1, position)?;
        self.values.slice_set(&values.contiguous()?, 1, position)?;
        Ok(())
    }
}

/// The cache of all layers, and which tokens are in it.
#[derive(Debug)]
pub(crate) struct KvCache {
    pub(crate) layers: Vec<LayerCache>,
    /// The tokens whose keys and values are there, from position 0 on.
    tokens: Vec<u32>,
    context: usize,
}

impl KvCache {
    pub(crate) fn new(
        layers: usize,
        kv_heads: usize,
        context: usize,
        head_dim: usize,
        device: &Device,
    ) -> Result<Self> {
        let layers =
            (0..layers).map(|_| LayerCache::new(kv_heads, context, head_dim, device)).collect::<Result<_>>()?;
        Ok(Self { layers, tokens: Vec::new(), context })
    }

    /// Tokens that fit.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Tokens that are there.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes of the cache.
    pub(crate) fn size(&self) -> u64 {
        let bytes = |layer: &LayerCache| (layer.keys.elem_count() + layer.values.elem_count()) as u64 * 4;
        self.layers.iter().map(bytes).sum()
    }

    /// Records tokens whose keys and values the layers have appended.
    pub(crate) fn advance(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets what does not begin `tokens`; says how many of them remain. The last of them is always left to compute,
    /// because its logits are needed.
    pub(crate) fn keep_prefix(&mut self, tokens: &[u32]) -> usize {
        let equal = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.tokens.truncate(equal.min(tokens.len().saturating_sub(1)));
        self.tokens.len()
    }
}
