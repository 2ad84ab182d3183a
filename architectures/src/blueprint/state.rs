//! What a layer keeps of a sequence.

use super::Mixer;

/// Positions that are kept together: memory for attention states comes in blocks of so many.
pub const BLOCK: u64 = 256;

/// What a layer keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// A row of keys and one of values for each key head and position.
    Kv {
        /// Key heads.
        kv_heads: u64,
        /// Elements of a key.
        key_dim: u64,
        /// Elements of a value; 0 where values are the first elements of keys.
        value_dim: u64,
        /// Positions that a token sees; `None`: all before it.
        window: Option<u64>,
    },
    /// So many float32 numbers, whatever the length.
    Recurrent {
        /// How many.
        numbers: u64,
    },
    /// Nothing: a text is computed at once.
    Nothing,
}

impl LayerState {
    /// What a mixer keeps.
    pub fn of(mixer: &Mixer, causal: bool) -> Self {
        match mixer {
            _ if !causal => Self::Nothing,
            Mixer::Attention(attention) => Self::Kv {
                kv_heads: attention.kv_heads,
                key_dim: attention.head_dim,
                value_dim: attention.value_dim,
                window: attention.window,
            },
            Mixer::Latent(latent) => {
                Self::Kv { kv_heads: 1, key_dim: latent.rank + latent.rope_dim, value_dim: 0, window: None }
            }
            Mixer::DeltaNet(net) => {
                let channels = 2 * net.key_heads * net.key_dim + net.value_heads * net.value_dim;
                let memory = net.value_heads * net.key_dim * net.value_dim;
                Self::Recurrent { numbers: memory + channels * (net.kernel - 1) }
            }
            Mixer::ShortConv(conv) => Self::Recurrent { numbers: conv.width * (conv.kernel - 1) },
        }
    }

    /// Positions that are kept at most, where a sequence has `context` of them and `ahead` more than the window are kept. Of the
    /// last block only what is written to takes memory.
    pub fn positions(self, context: u64, ahead: u64) -> u64 {
        let Self::Kv { window, .. } = self else { return 0 };
        // A ring's first and last block are both begun.
        let blocks = window.map_or(u64::MAX, |window| window.saturating_add(ahead).div_ceil(BLOCK).saturating_add(1));
        context.min(blocks.saturating_mul(BLOCK))
    }

    /// Bytes for a sequence of up to `context` positions, of which `ahead` more than a window are kept, and `copies` of the numbers.
    pub fn sequence_bytes(self, [context, ahead, copies]: [u64; 3], row_bytes: impl Fn(u64) -> u64) -> u64 {
        self.bytes(self.positions(context, ahead), copies, row_bytes)
    }

    /// Bytes for a sequence: `positions` rows of keys and values, whose bytes for so many elements `row_bytes` says, or
    /// `copies` of the numbers.
    pub fn bytes(self, positions: u64, copies: u64, row_bytes: impl Fn(u64) -> u64) -> u64 {
        match self {
            Self::Kv { kv_heads, key_dim, value_dim, .. } => {
                let rows = row_bytes(key_dim).saturating_add(row_bytes(value_dim));
                kv_heads.saturating_mul(rows).saturating_mul(positions)
            }
            Self::Recurrent { numbers } => numbers.saturating_mul(4).saturating_mul(copies),
            Self::Nothing => 0,
        }
    }
}
