//! The memory of attention scores that are not computed tile by tile.

use architectures::{BlockRule, Layer, Mixer};
use protocol::limits::DEVICE_SCORES;

use super::{Cache, Decoder, FLOAT};
use crate::amount::Amount;

impl Decoder<'_> {
    /// Returns the bytes of scores on a device for a layer without kernels for them: products, sums
    /// with biases and masks, and their softmax; the keys and values of a sequence in float32,
    /// which are read as one tensor; and the growth of that tensor, which doubles.
    pub(super) fn device_scores(&self, cache: &Cache) -> Amount {
        let context = Amount(cache.context.min(self.blueprint.context));
        let of_layer = |layer: &Layer| -> Option<Amount> {
            if layer.mixer.has_plain_scores() {
                return None;
            }
            let keys = match &layer.mixer {
                Mixer::Attention(own) => {
                    context * (Amount(own.kv_heads) * (Amount(own.head_dim) + Amount(own.value_dim)))
                }
                Mixer::Latent(own) => context * (2 * (Amount(own.rank) + Amount(own.rope_dim))),
                Mixer::Compressed(own) => {
                    let entries = own.entries.as_ref().map_or(Amount(0), |own| context / own.compression.every);
                    (entries + context.min(own.window + self.tokens(cache))) * (2 * Amount(own.head_dim))
                }
                _ => Amount(0),
            };
            Some(FLOAT * (3 * Amount(DEVICE_SCORES as u64) + 2 * keys))
        };
        let scores = self.blueprint.layers.iter().filter_map(of_layer).max().unwrap_or_default();
        scores + self.choices(cache)
    }

    /// Returns the bytes in which indexers score and choose the positions of a chunk.
    pub(super) fn choices(&self, cache: &Cache) -> Amount {
        let context = Amount(cache.context.min(self.blueprint.context));
        // A byte for each token and key. Each thread holds the scores of a token and their order,
        // five numbers for each key. The estimate does not know the number of threads: the number
        // for each head has room for `heads / 5` further ones.
        let scored_keys = |keys: Amount, heads: u64| keys * (self.tokens(cache) + FLOAT * (Amount(heads) + Amount(5)));
        let of_layer = |layer: &Layer| match &layer.mixer {
            Mixer::Latent(latent) => latent.indexer.as_ref().map_or(Amount(0), |own| scored_keys(context, own.heads)),
            Mixer::Compressed(own) => {
                own.indexer().map_or(Amount(0), |own| scored_keys(context / own.compression.every, own.heads))
            }
            mixer => mixer.block_indexer().map_or(Amount(0), |own| {
                let blocks = Amount(context.0.div_ceil(own.block));
                // Heads that choose for themselves have marks each: a byte for each token and
                // block. The products of a token with keys, or with blocks; its scores, and their
                // order.
                let (groups, products) = match own.rule {
                    BlockRule::Mean => (1, blocks),
                    BlockRule::Greatest { .. } => (own.heads, context),
                };
                blocks * (self.tokens(cache) * Amount(groups)) + FLOAT * (products + 5 * blocks)
            }),
        };
        self.blueprint.layers.iter().map(of_layer).max().unwrap_or_default()
    }
}
