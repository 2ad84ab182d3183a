//! State that a layer keeps of a sequence.

use super::{BlockIndexer, BlockRule, Compression, Mixer};

/// Number of positions in a block: memory of attention states is allocated in blocks.
pub const BLOCK: u64 = 256;

/// State that a layer keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// KV cache: a row of keys and a row of values for each key head and position.
    Kv {
        /// Number of key heads.
        kv_heads: u64,
        /// Elements of a key.
        key_dim: u64,
        /// Elements of a value; 0 if values are the first elements of keys.
        value_dim: u64,
        /// Number of positions to which a token attends; `None` means all earlier positions.
        window: Option<u64>,
    },
    /// Compressed entries: a row for each complete segment of positions.
    Entries {
        /// Elements of a row.
        width: u64,
        /// Number of positions of a segment.
        every: u64,
    },
    /// A fixed number of float32 numbers, regardless of the length of the sequence.
    Recurrent {
        /// How many numbers.
        numbers: u64,
    },
    /// No state, because each token is computed without the others.
    Stateless,
    /// No state, because a text is computed in one pass.
    Nothing,
}

impl LayerState {
    /// Returns the state of a mixer.
    pub fn of(mixer: &Mixer, causal: bool) -> Self {
        match mixer {
            _ if !causal => Self::Nothing,
            Mixer::Attention(attention) if attention.reads_layer.is_some() => Self::Stateless,
            Mixer::Attention(attention) => Self::Kv {
                kv_heads: attention.kv_heads,
                key_dim: attention.head_dim,
                value_dim: attention.value_dim,
                window: [attention.window, attention.chunk].into_iter().flatten().min(),
            },
            Mixer::Latent(latent) => {
                let of_indexer = latent.indexer.as_ref().map_or(0, |indexer| indexer.head_dim);
                let key_dim = latent.rank + latent.rope_dim + of_indexer;
                Self::Kv { kv_heads: 1, key_dim, value_dim: 0, window: None }
            }
            Mixer::Compressed(own) => {
                Self::Kv { kv_heads: 1, key_dim: own.head_dim, value_dim: 0, window: Some(own.window) }
            }
            Mixer::DeltaNet(net) => {
                let channels = 2 * net.key_heads * net.key_dim + net.value_heads * net.value_dim;
                let memory = net.value_heads * net.key_dim * net.value_dim;
                Self::Recurrent { numbers: memory + channels * (net.kernel - 1) }
            }
            Mixer::ShortConv(conv) => Self::Recurrent { numbers: conv.width * (conv.kernel - 1) },
            Mixer::StateSpace(own) => {
                let channels = own.heads * own.head_dim + 2 * own.groups * own.state_dim;
                let memory = own.heads * own.head_dim * own.state_dim;
                Self::Recurrent { numbers: memory + channels * (own.kernel - 1) }
            }
            Mixer::SelectiveScan(own) => Self::Recurrent { numbers: own.width * (own.state_dim + own.kernel - 1) },
            Mixer::LinearAttention(own) => Self::Recurrent { numbers: own.heads * own.head_dim * own.head_dim },
            Mixer::None => Self::Stateless,
        }
    }

    /// Returns the states of an indexer that chooses blocks: its keys, and the past inputs of their
    /// means if it has such.
    pub fn of_indexer(own: &BlockIndexer) -> (Self, Option<Self>) {
        let keys = Self::Kv { kv_heads: 1, key_dim: own.head_dim, value_dim: 0, window: None };
        let means = Self::Recurrent { numbers: own.head_dim * (own.block - 1) };
        (keys, (own.rule == BlockRule::Mean).then_some(means))
    }

    /// Returns the states of a compression to entries of `width` elements: the entries, and the
    /// past values and gates of which the next ones are made.
    pub fn of_compression(own: &Compression, width: u64) -> [Self; 2] {
        let past = own.reach().saturating_sub(1).saturating_mul(2);
        let numbers = past.saturating_mul(own.value_width(width));
        [Self::Entries { width, every: own.every }, Self::Recurrent { numbers }]
    }

    /// Returns the largest number of rows that are kept for a sequence of `context` positions, if
    /// `ahead` positions beyond the window are kept. In the last block, only written rows use
    /// memory.
    pub fn positions(self, context: u64, ahead: u64) -> u64 {
        let window = match self {
            Self::Kv { window, .. } => window,
            Self::Entries { every, .. } => return context / every,
            _ => return 0,
        };
        // The first and the last block of a ring may both be partly used.
        let blocks = window.map_or(u64::MAX, |window| window.saturating_add(ahead).div_ceil(BLOCK).saturating_add(1));
        context.min(blocks.saturating_mul(BLOCK))
    }

    /// Returns the bytes for a sequence of up to `context` positions, if `ahead` positions beyond a
    /// window and `copies` of a recurrent state are kept.
    pub fn sequence_bytes(self, [context, ahead, copies]: [u64; 3], row_bytes: impl Fn(u64) -> u64) -> u64 {
        self.bytes(self.positions(context, ahead), copies, row_bytes)
    }

    /// Returns the bytes for a sequence: `positions` rows of keys and values, or `copies` of a
    /// recurrent state. `row_bytes` returns the size of a row with the given number of elements.
    pub fn bytes(self, positions: u64, copies: u64, row_bytes: impl Fn(u64) -> u64) -> u64 {
        match self {
            Self::Kv { kv_heads, key_dim, value_dim, .. } => {
                let rows = row_bytes(key_dim).saturating_add(row_bytes(value_dim));
                kv_heads.saturating_mul(rows).saturating_mul(positions)
            }
            Self::Entries { width, .. } => row_bytes(width).saturating_mul(positions),
            Self::Recurrent { numbers } => numbers.saturating_mul(4).saturating_mul(copies),
            Self::Stateless | Self::Nothing => 0,
        }
    }
}
