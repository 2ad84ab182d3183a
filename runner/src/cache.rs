//! The KV cache of one slot: keys and values of every position, and which tokens are there.
//!
//! On the CPU they are rows of bytes in anonymous memory that the system gives page by page as positions are written, so
//! a slot takes what its longest sequence took. On other devices they are tensors, there from the start.
//!
//! Bytes of a slot: layers × 2 × key heads × context × bytes of a row, see `protocol::KvType::row_bytes`.

mod host;
mod on_device;

use anyhow::{Result, ensure};
use candle_core::Device;
use protocol::KvType;

pub(crate) use host::HostCache;
pub(crate) use on_device::DeviceCache;

/// The sizes of a slot's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// Decoder layers.
    pub(crate) layers: usize,
    /// Key and value heads.
    pub(crate) kv_heads: usize,
    /// Elements of a head.
    pub(crate) head_dim: usize,
    /// Tokens that fit.
    pub(crate) context: usize,
    /// How elements are kept.
    pub(crate) kv_type: KvType,
}

impl CacheShape {
    /// Bytes of the keys of a layer.
    pub(crate) fn layer_bytes(&self) -> u64 {
        (self.kv_heads * self.context) as u64 * self.kv_type.row_bytes(self.head_dim as u64)
    }

    /// Bytes of a slot.
    pub(crate) fn bytes(&self) -> u64 {
        2 * self.layers as u64 * self.layer_bytes()
    }
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// Where keys and values are.
#[derive(Debug)]
pub(crate) enum Storage {
    /// In memory, for our kernels.
    Host(HostCache),
    /// On another device, for candle's.
    Device(DeviceCache),
}

/// The cache of one slot.
#[derive(Debug)]
pub(crate) struct KvCache {
    /// Keys and values.
    pub(crate) storage: Storage,
    /// The tokens whose keys and values are there, from position 0 on.
    tokens: Vec<u32>,
    context: usize,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// Where the device has no room for it, or cannot keep that type.
    pub(crate) fn new(shape: CacheShape, device: &Device) -> Result<Self> {
        let storage = match device {
            Device::Cpu => Storage::Host(HostCache::new(shape)?),
            _ => Storage::Device(DeviceCache::new(shape, device)?),
        };
        Ok(Self { storage, tokens: Vec::new(), context: shape.context })
    }

    /// Tokens that fit.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Tokens that are there.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens that are there.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// That so many more tokens fit.
    pub(crate) fn check_room(&self, tokens: usize) -> Result<()> {
        let room = self.context - self.len();
        ensure!(tokens <= room, "{tokens} tokens do not fit into the {room} that the context has left");
        Ok(())
    }

    /// Records tokens whose keys and values the layers have appended.
    pub(crate) fn advance(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets what does not begin `tokens`; says how many of them remain. The last of them is always left to compute,
    /// because its logits are needed.
    pub(crate) fn keep_prefix(&mut self, tokens: &[u32]) -> usize {
        let equal = common_prefix(&self.tokens, tokens);
        self.tokens.truncate(equal.min(tokens.len().saturating_sub(1)));
        self.tokens.len()
    }
}

/// How many tokens two sequences begin with in common.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_begins_alike() {
        let shape = CacheShape { layers: 1, kv_heads: 1, head_dim: 4, context: 8, kv_type: KvType::F16 };
        let mut cache = KvCache::new(shape, &Device::Cpu).expect("a small cache");
        cache.advance(&[1, 2, 3, 4]);
        assert_eq!(cache.keep_prefix(&[1, 2, 9]), 2);
        assert_eq!(cache.tokens(), [1, 2]);
        assert_eq!(cache.keep_prefix(&[1, 2]), 1, "the last token is computed again");
        assert_eq!(cache.keep_prefix(&[]), 0);
        assert!(cache.check_room(8).is_ok() && cache.check_room(9).is_err());
    }

    #[test]
    fn sizes_are_exact() {
        let shape = |kv_type| CacheShape { layers: 30, kv_heads: 3, head_dim: 64, context: 4096, kv_type };
        for (kv_type, row) in [(KvType::F32, 256), (KvType::F16, 128), (KvType::Bf16, 128), (KvType::Q8_0, 68)] {
            assert_eq!(shape(kv_type).bytes(), 30 * 2 * 3 * 4096 * row);
        }
    }
}
