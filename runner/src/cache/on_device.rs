//! Keys and values as tensors on a device that is not the CPU.

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor};
use protocol::KvType;

use super::{CacheShape, Half};

/// The cache of a slot on a device.
#[derive(Debug)]
pub(crate) struct DeviceCache {
    /// Keys and values of each layer, `[kv_heads, context, head_dim]`.
    layers: Vec<[Tensor; 2]>,
    dtype: DType,
}

impl DeviceCache {
    pub(super) fn new(shape: CacheShape, device: &Device) -> Result<Self> {
        let dtype = match shape.kv_type {
            KvType::F32 => DType::F32,
            KvType::F16 => DType::F16,
            KvType::Bf16 => DType::BF16,
            KvType::Q8_0 => {
                bail!("a KV cache of q8_0 is computed with on the CPU only; choose f16, or the device `cpu`")
            }
        };
        let size = (shape.kv_heads, shape.context, shape.head_dim);
        let layer = || Ok([Tensor::zeros(size, dtype, device)?, Tensor::zeros(size, dtype, device)?]);
        let layers: Result<_> = (0..shape.layers).map(|_| layer()).collect();
        let layers = layers.with_context(|| {
            format!("the device has no room for {} bytes of KV cache; choose less context", shape.bytes())
        })?;
        Ok(Self { layers, dtype })
    }

    /// `[kv_heads, to - from, head_dim]` of a layer, as float32.
    pub(crate) fn rows(&self, layer: usize, half: Half, from: usize, to: usize) -> Result<Tensor> {
        let whole = &self.layers[layer][usize::from(half == Half::Values)];
        Ok(whole.narrow(1, from, to - from)?.to_dtype(DType::F32)?)
    }

    /// Writes `[kv_heads, tokens, head_dim]` at a position.
    pub(crate) fn write(&mut self, layer: usize, half: Half, position: usize, x: &Tensor) -> Result<()> {
        let whole = &self.layers[layer][usize::from(half == Half::Values)];
        whole.slice_set(&x.to_dtype(self.dtype)?.contiguous()?, 1, position)?;
        Ok(())
    }
}
