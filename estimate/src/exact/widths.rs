//! Elements per token that the parts of a layer hold at a time.

use architectures::{Ffn, Mixer};

use crate::amount::Amount;

/// Returns the largest number of elements per token that a network rounds at a time.
pub(super) fn widest_of(ffn: &Ffn, hidden: u64) -> Amount {
    match ffn {
        Ffn::Gated(own) => Amount(own.width),
        Ffn::Plain(own) => Amount(own.width),
        Ffn::Experts(own) => Amount(own.router.top_k) * Amount(own.width.max(hidden)),
        Ffn::Sum(branches) => branches.iter().map(|branch| widest_of(&branch.ffn, hidden)).max().unwrap_or_default(),
        Ffn::None => Amount(0),
    }
}

/// Returns the elements per token that a mixer holds at a time.
pub(super) fn mixer_width(mixer: &Mixer) -> Amount {
    let product = |a: u64, b: u64| Amount(a) * Amount(b);
    match mixer {
        Mixer::Attention(own) => {
            let queries = product(own.heads, own.head_dim) + product(own.heads, own.value_dim);
            let keys = product(own.kv_heads, own.head_dim) + product(own.kv_heads, own.value_dim);
            let gate = own.gate.as_ref().map_or(Amount(0), |_| product(own.heads, own.value_dim));
            let indexer = own.indexer.as_ref();
            let indexer = indexer.map_or(Amount(0), |own| product(own.heads, own.head_dim) + 2 * Amount(own.head_dim));
            // Models that compute a whole text at once hold a second copy of keys and values, in
            // the order that the kernels need.
            queries + 2 * keys + gate + indexer
        }
        Mixer::Latent(own) => {
            let indexer = own.indexer.as_ref();
            let row = Amount(own.rank) + Amount(own.rope_dim) + Amount(indexer.map_or(0, |own| own.head_dim));
            let queries = indexer.map_or(Amount(0), |own| product(own.heads, own.head_dim));
            3 * (Amount(own.heads) * row) + product(own.heads, own.value_dim) + queries
        }
        Mixer::Compressed(own) => {
            // Values, gates, and an entry before and after its norm.
            let entries =
                mixer.compressions().map(|(own, width)| 2 * Amount(own.value_width(width)) + 2 * Amount(width));
            let entries = entries.fold(Amount(0), |a, b| a + b);
            let indexer = own.indexer().map_or(Amount(0), |own| product(own.heads, own.head_dim) + Amount(own.heads));
            let low = 2 * Amount(own.query.rank) + 2 * Amount(own.head_dim) + product(own.groups, own.rank);
            2 * product(own.heads, own.head_dim) + low + entries + indexer
        }
        Mixer::DeltaNet(own) => {
            let decays = if own.decays_by_row { product(own.value_heads, own.key_dim) } else { Amount(0) };
            4 * product(own.value_heads, own.value_dim) + 4 * product(own.key_heads, own.key_dim) + decays
        }
        Mixer::ShortConv(own) => 4 * Amount(own.width),
        // Gate, input and mixed values; write, read and step.
        Mixer::StateSpace(own) => {
            4 * product(own.heads, own.head_dim) + 4 * product(own.groups, own.state_dim) + Amount(own.heads)
        }
        // Gate, input and its convolution, steps and mixed values; write, read and the low rank.
        Mixer::SelectiveScan(own) => 5 * Amount(own.width) + 4 * Amount(own.state_dim) + 2 * Amount(own.step.rank),
        // Queries, keys, values, mixed values and the gate.
        Mixer::LinearAttention(own) => 5 * product(own.heads, own.head_dim),
        Mixer::None => Amount(0),
    }
}

/// Returns the elements per token that a feed-forward network holds at a time, without its input
/// and output.
pub(super) fn ffn_width(ffn: &Ffn, hidden: u64) -> Amount {
    match ffn {
        Ffn::Gated(own) => 2 * Amount(own.width),
        Ffn::Plain(own) => Amount(own.width),
        // Each expert of a token has a row of `hidden` elements (its input, then its output) and
        // its gate and up rows.
        Ffn::Experts(own) => {
            let shared = own.shared.as_ref().map_or(0, |shared| shared.ffn.width());
            let routed = Amount(own.router.top_k) * (Amount(hidden) + 2 * Amount(own.width));
            routed.max(2 * Amount(shared)) + Amount(own.count)
        }
        // The sum so far, and each network in turn.
        Ffn::Sum(branches) => {
            let widest = branches.iter().map(|branch| ffn_width(&branch.ffn, hidden)).max().unwrap_or_default();
            2 * Amount(hidden) + widest
        }
        Ffn::None => Amount(0),
    }
}
