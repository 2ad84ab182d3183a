//! The size of the KV cache of each block.

use crate::Request;
use crate::amount::{Amount, sum};
use crate::hyper::{Hyper, Load};

/// Tokens of one tile of an image in a cross-attention block.
const IMAGE_TOKENS: u64 = 1601;
/// Maximal number of tiles of an image.
const IMAGE_TILES: u64 = 4;
/// The window of every other block of gpt-oss, also if its metadata states another.
const GPT_OSS_WINDOW: u64 = 4096;
/// Every sixth block of gemma3 has full attention.
const GEMMA3_PERIOD: usize = 6;

/// The rule that replaces the generic cache size in an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheRule {
    /// No rule: all blocks have the generic size.
    Generic,
    /// Cross-attention blocks hold an image.
    CrossAttention,
    /// All blocks but every sixth hold a window.
    Gemma3,
    /// Every other block holds a window.
    GptOss,
}

/// The rule of each architecture; all other architectures are generic.
const RULES: [(&str, CacheRule); 4] = [
    ("mllama", CacheRule::CrossAttention),
    ("gemma3", CacheRule::Gemma3),
    ("gptoss", CacheRule::GptOss),
    ("gpt-oss", CacheRule::GptOss),
];

/// The KV cache sizes of a model.
#[derive(Clone, Debug)]
pub(super) struct KvSizes {
    /// Bytes of each block.
    pub(super) blocks: Vec<u64>,
    /// Bytes of all blocks by the generic rule; the graph of gpt-oss is computed from it.
    pub(super) generic: Amount,
}

/// Computes the cache sizes of an architecture for a request.
pub(super) fn kv_sizes(architecture: &str, hyper: &Hyper, request: &Request) -> KvSizes {
    let load = Load::of(request);
    let element = element_bytes(&request.kv_type);
    let mut blocks: Vec<u64> = (0..hyper.blocks).map(|block| generic(hyper, load, element, block)).collect();
    let generic = Amount(sum(blocks.iter().copied()));
    let rule = RULES.iter().find(|(name, _)| *name == architecture).map_or(CacheRule::Generic, |(_, rule)| *rule);
    for (index, bytes) in blocks.iter_mut().enumerate() {
        if let Some(other) = replaced(rule, hyper, load, element, index) {
            *bytes = other;
        }
    }
    KvSizes { blocks, generic }
}

/// Returns the bytes of an element. The scales of quantized types do not count.
fn element_bytes(kv_type: &str) -> f64 {
    match kv_type {
        "q8_0" => 1.0,
        "q4_0" => 0.5,
        "f32" => 4.0,
        _ => 2.0,
    }
}

#[expect(clippy::cast_sign_loss, reason = "a product of sizes is not negative")]
fn truncated(elements: Amount, element: f64) -> u64 {
    (elements.0 as f64 * element) as u64
}

/// Returns the elements of the keys and values of one token, for this number of heads.
fn pair(hyper: &Hyper, heads: Amount) -> Amount {
    (hyper.key + hyper.value) * heads
}

fn generic(hyper: &Hyper, load: Load, element: f64, block: usize) -> u64 {
    let kv_heads = hyper.kv_heads_by_block.of_block(block);
    if hyper.heads_by_block.of_block(block) > 0 && kv_heads > 0 {
        return truncated(load.tokens * pair(hyper, Amount(kv_heads)), element);
    }
    // A recurrent block has a float32 state instead, whose size does not depend on the context.
    let convolution = Amount(hyper.convolution.0.saturating_sub(1)) * (hyper.inner + 2 * hyper.groups * hyper.state);
    (4 * (convolution + hyper.state * hyper.inner)).0
}

/// Returns the size of a block by a rule that replaces the generic one. It always uses the largest
/// number of key and value heads of any block.
fn replaced(rule: CacheRule, hyper: &Hyper, load: Load, element: f64, block: usize) -> Option<u64> {
    let pair = pair(hyper, hyper.kv_heads);
    match rule {
        CacheRule::CrossAttention if hyper.cross_attention.contains(&block) => {
            Some((4 * pair * Amount(IMAGE_TOKENS * IMAGE_TILES)).0)
        }
        CacheRule::Gemma3 if !(block + 1).is_multiple_of(GEMMA3_PERIOD) => {
            Some(truncated((load.sequences * hyper.window + load.batch) * pair, element))
        }
        CacheRule::GptOss => {
            let window = GPT_OSS_WINDOW * load.sequences + load.batch;
            let tokens = if block.is_multiple_of(2) { window } else { load.tokens };
            Some((Amount(truncated(pair, element)) * tokens).0)
        }
        CacheRule::Generic | CacheRule::CrossAttention | CacheRule::Gemma3 => None,
    }
}
