//! The numbers that formulas are made of, read from metadata.

use crate::amount::Amount;
use crate::model::{MetadataValue, Model};
use crate::{Request, Unfit};

/// More blocks than any model has: one size is kept for each.
const MAX_BLOCKS: u64 = 1 << 16;

/// Longer lists are not kept by the reader whose numbers these are, and count as absent.
const MAX_LIST: usize = 1024;

/// How many heads each block has.
#[derive(Clone, Debug)]
pub(super) struct Heads(Vec<u64>);

impl Heads {
    /// In a block. A list that is too short goes on with ones, unless it has a single number.
    pub(super) fn of_block(&self, block: usize) -> u64 {
        match self.0.as_slice() {
            [single] => *single,
            list => list.get(block).copied().unwrap_or(1),
        }
    }

    /// The most of any block, also of one that the model does not have.
    fn most(&self) -> Amount {
        Amount(self.0.iter().max().copied().unwrap_or(1))
    }

    /// The fewest.
    fn fewest(&self) -> Amount {
        Amount(self.0.iter().min().copied().unwrap_or(1))
    }
}

/// The numbers of a model, each with the letter that the formulas have for it.
#[derive(Clone, Debug)]
pub(super) struct Hyper {
    /// Blocks; the output is not among them.
    pub(super) blocks: usize,
    /// `e`: width of the residual stream.
    pub(super) embedding: Amount,
    /// Query heads of each block.
    pub(super) heads_by_block: Heads,
    /// `h`: the most query heads of any block.
    pub(super) heads: Amount,
    /// Key and value heads of each block.
    pub(super) kv_heads_by_block: Heads,
    /// `k`: the most key and value heads of any block.
    pub(super) kv_heads: Amount,
    /// The fewest.
    pub(super) fewest_kv_heads: Amount,
    /// `d`: width of a head, from the width of the stream.
    pub(super) head: Amount,
    /// `dk`: width of a key.
    pub(super) key: Amount,
    /// Width of a value.
    pub(super) value: Amount,
    /// `ff`: width of the MLP.
    pub(super) feed_forward: Amount,
    /// Tokens that sliding layers look back.
    pub(super) window: Amount,
    /// Kernel of the convolution of recurrent blocks.
    pub(super) convolution: Amount,
    /// State of recurrent blocks.
    pub(super) state: Amount,
    /// Inner width of recurrent blocks.
    pub(super) inner: Amount,
    /// Groups of recurrent blocks.
    pub(super) groups: Amount,
    /// `v`: tokens of the vocabulary.
    pub(super) vocabulary: Amount,
    /// Blocks that attend to an image instead of tokens.
    pub(super) cross_attention: Vec<usize>,
}

/// How much is computed at a time, as the formulas need it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// `b`: tokens computed at a time, of all sequences.
    pub(super) batch: Amount,
    /// `c`: tokens of all sequences together.
    pub(super) tokens: Amount,
    /// `n`: sequences.
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
    /// Reads the metadata. What is absent, or of another type, has the default of the reader whose numbers these are.
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
        // Not the number of query heads: a file that leaves it out is taken to have one.
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

    /// How many query heads share a key: the most by the fewest, rounded down.
    pub(super) fn heads_per_kv_head(&self, twice: u64) -> Amount {
        twice * self.heads / self.fewest_kv_heads.max(Amount(1))
    }
}

/// Heads are a number or a list of numbers. A negative one is none.
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
