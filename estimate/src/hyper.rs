//! Hyper-parameters that the formulas use, read from metadata.

use crate::amount::Amount;
use crate::model::{MetadataValue, Model};
use crate::{Request, Unfit};

/// The largest accepted number of blocks, since a size is kept for each; no model has as many.
const MAX_BLOCKS: u64 = 1 << 16;

/// Ollama's reader does not keep longer lists, so they count as absent.
const MAX_LIST: usize = 1024;

/// The number of heads of each block.
#[derive(Clone, Debug)]
pub(super) struct Heads(Vec<u64>);

impl Heads {
    /// Returns the number of heads of a block. A single number holds for all blocks; a list that is
    /// too short is extended with ones.
    pub(super) fn of_block(&self, block: usize) -> u64 {
        match self.0.as_slice() {
            [single] => *single,
            list => list.get(block).copied().unwrap_or(1),
        }
    }

    /// Returns the largest number of heads in the list, which may be longer than the number of
    /// blocks.
    fn most(&self) -> Amount {
        Amount(self.0.iter().max().copied().unwrap_or(1))
    }

    /// Returns the smallest number of heads in the list.
    fn fewest(&self) -> Amount {
        Amount(self.0.iter().min().copied().unwrap_or(1))
    }
}

/// The hyper-parameters of a model, each with its letter in the formulas.
#[derive(Clone, Debug)]
pub(super) struct Hyper {
    /// Number of blocks, without the output.
    pub(super) blocks: usize,
    /// `e`: width of the residual stream.
    pub(super) embedding: Amount,
    /// Query heads of each block.
    pub(super) heads_by_block: Heads,
    /// `h`: the largest number of query heads of any block.
    pub(super) heads: Amount,
    /// Key and value heads of each block.
    pub(super) kv_heads_by_block: Heads,
    /// `k`: the largest number of key and value heads of any block.
    pub(super) kv_heads: Amount,
    /// The smallest number of key and value heads of any block.
    pub(super) fewest_kv_heads: Amount,
    /// `d`: width of a head, computed from the width of the stream.
    pub(super) head: Amount,
    /// `dk`: width of a key.
    pub(super) key: Amount,
    /// Width of a value.
    pub(super) value: Amount,
    /// `ff`: width of the MLP.
    pub(super) feed_forward: Amount,
    /// Window of sliding-window layers, in tokens.
    pub(super) window: Amount,
    /// Kernel width of the convolution of recurrent blocks.
    pub(super) convolution: Amount,
    /// State size of recurrent blocks.
    pub(super) state: Amount,
    /// Inner width of recurrent blocks.
    pub(super) inner: Amount,
    /// Number of groups of recurrent blocks.
    pub(super) groups: Amount,
    /// `v`: number of tokens of the vocabulary.
    pub(super) vocabulary: Amount,
    /// Blocks with cross-attention to an image.
    pub(super) cross_attention: Vec<usize>,
}

/// The amount of computation, in the terms of the formulas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// `b`: tokens that are computed at a time, over all sequences.
    pub(super) batch: Amount,
    /// `c`: context tokens of all sequences together.
    pub(super) tokens: Amount,
    /// `n`: number of sequences.
    pub(super) sequences: Amount,
}

impl Load {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            batch: Amount(request.batch),
            tokens: Amount(request.context) * Amount(request.parallel),
            sequences: Amount(request.parallel),
        }
    }
}

impl Hyper {
    /// Reads the metadata. Values that are absent or of another type get the defaults of Ollama's
    /// reader.
    pub(super) fn read(model: &Model) -> Result<Self, Unfit> {
        let value = |key: &str| model.metadata.get(&format!("{}.{key}", model.architecture));
        let scalar = |key: &str| match value(key) {
            Some(MetadataValue::U32(number)) => Some(Amount(u64::from(*number))),
            _ => None,
        };
        let number = |key: &str| scalar(key).unwrap_or_default();
        let blocks = number("block_count").0;
        if blocks > MAX_BLOCKS {
            return Err(Unfit::TooManyBlocks { found: blocks, most: MAX_BLOCKS });
        }
        let heads = heads(value("attention.head_count"));
        // The default is one, not the number of query heads as elsewhere.
        let kv_heads = self::heads(value("attention.head_count_kv"));
        let head = number("embedding_length") / heads.fewest();
        Ok(Self {
            blocks: blocks as usize,
            embedding: number("embedding_length"),
            heads: heads.most(),
            heads_by_block: heads,
            kv_heads: kv_heads.most(),
            fewest_kv_heads: kv_heads.fewest(),
            kv_heads_by_block: kv_heads,
            head,
            key: scalar("attention.key_length").unwrap_or(head),
            value: scalar("attention.value_length").unwrap_or(head),
            feed_forward: number("feed_forward_length"),
            window: number("attention.sliding_window"),
            convolution: number("ssm.conv_kernel"),
            state: number("ssm.state_size"),
            inner: number("ssm.inner_size"),
            groups: number("ssm.group_count"),
            vocabulary: Amount(model.vocabulary),
            cross_attention: match value("attention.cross_attention_layers") {
                Some(MetadataValue::I32s(list)) => list.iter().filter_map(|&i| usize::try_from(i).ok()).collect(),
                _ => Vec::new(),
            },
        })
    }

    /// Returns `twice` times the largest number of query heads, divided by the smallest number of
    /// key and value heads, rounded down.
    pub(super) fn heads_per_kv_head(&self, twice: u64) -> Amount {
        twice * self.heads / self.fewest_kv_heads.max(Amount(1))
    }
}

/// Reads head counts: one number or a list. A negative number counts as zero.
fn heads(value: Option<&MetadataValue>) -> Heads {
    let list = match value {
        Some(MetadataValue::U32(number)) => vec![u64::from(*number)],
        Some(MetadataValue::U32s(list)) if list.len() <= MAX_LIST => list.iter().copied().map(u64::from).collect(),
        Some(MetadataValue::I32s(list)) if list.len() <= MAX_LIST => {
            list.iter().map(|&number| u64::try_from(number).unwrap_or(0)).collect()
        }
        _ => vec![1],
    };
    Heads(list)
}
