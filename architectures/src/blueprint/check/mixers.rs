//! Checks of the numbers of mixers.

use super::super::{
    Attention, BlockIndexer, BlockRule, CompressedAttention, Compression, DeltaInput, DeltaNet, Indexer, Latent,
    LatentQuery, LinearAttention, Mixer, PositionBias, QueryGrowth, SelectiveScan, ShortConv, StateSpace,
};
use super::{in_range, norm, positive};

/// Limit of the kernel of short convolutions; more than any model has.
const MAX_KERNEL: u64 = 1 << 8;

pub(super) fn mixer(mixer: &Mixer) -> Result<(), String> {
    match mixer {
        Mixer::Attention(own) => attention(own),
        Mixer::Latent(own) => latent(own),
        Mixer::Compressed(own) => compressed(own),
        Mixer::DeltaNet(own) => delta_net(own),
        Mixer::ShortConv(own) => short_conv(own),
        Mixer::StateSpace(own) => state_space(own),
        Mixer::SelectiveScan(own) => selective_scan(own),
        Mixer::LinearAttention(own) => linear_attention(own),
        Mixer::None => Ok(()),
    }
}

fn heads(heads: u64, kv_heads: u64) -> Result<(), String> {
    in_range("number of attention heads", heads, 1 << 14)?;
    in_range("number of key/value heads", kv_heads, 1 << 14)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(format!("{heads} attention heads cannot share {kv_heads} key/value heads evenly"));
    }
    Ok(())
}

fn rope(rope: &crate::Rope, head_dim: u64) -> Result<(), String> {
    positive(rope.numbers())?;
    if let crate::RopeScaling::Proportional { share, .. } = rope.scaling
        && !(0.0..=1.0).contains(&share)
    {
        return Err(format!("RoPE rotates a share of {share}, expected 0 to 1"));
    }
    let rotated = rope.rotated(head_dim);
    if rotated == 0 || rotated > head_dim || !rotated.is_multiple_of(2) {
        return Err(format!("RoPE rotates {rotated} of {head_dim} elements, expected an even number of them"));
    }
    if matches!(rope.axes, Some(crate::RopeAxes::Halves | crate::RopeAxes::Alternating)) && !rotated.is_multiple_of(4) {
        return Err(format!("RoPE rotates {rotated} elements by rows and columns, expected a multiple of 4"));
    }
    if let crate::RopeScaling::Llama3 { low_frequency_factor: low, high_frequency_factor: high, .. } = rope.scaling
        && high < low
    {
        return Err(format!("the factors of RoPE are {low} for low and {high} for high frequencies, expected no less"));
    }
    if let crate::RopeScaling::LongRope { short, long, .. } = &rope.scaling
        && [short, long].iter().any(|divisors| divisors.len() as u64 != rotated / 2)
    {
        let [short, long] = [short.len(), long.len()];
        return Err(format!("RoPE has {short} short and {long} long factors, expected {}", rotated / 2));
    }
    Ok(())
}

fn attention(attention: &Attention) -> Result<(), String> {
    let Attention { head_dim, value_dim, .. } = *attention;
    heads(attention.heads, attention.kv_heads)?;
    in_range("head size", head_dim, 1 << 16)?;
    in_range("size of value heads", value_dim, 1 << 16)?;
    if !head_dim.is_multiple_of(2) {
        return Err(format!("head size is {head_dim}, RoPE needs an even one"));
    }
    if let Some(window) = attention.window {
        in_range("sliding window", window, 1 << 40)?;
    }
    if let Some(chunk) = attention.chunk {
        in_range("number of positions of a chunk", chunk, 1 << 31)?;
    }
    positive([Some(attention.scale), attention.soft_cap, attention.clip].into_iter().flatten())?;
    attention.rope.iter().try_for_each(|own| rope(own, head_dim))?;
    if let Some(second) = &attention.second_rope {
        rope(second, head_dim)?;
        let first = attention.rope.as_ref().map_or(0, |own| own.rotated(head_dim));
        if first.saturating_add(second.rotated(head_dim)) > head_dim {
            return Err(format!("two rotary embeddings rotate more than the {head_dim} elements of a head"));
        }
    }
    attention.query_growth.iter().try_for_each(growth)?;
    attention.position_bias.iter().try_for_each(position_bias)?;
    attention.indexer.as_deref().map_or(Ok(()), |own| block_indexer(own, attention))?;
    let of_heads = attention.query_norm.iter().chain(&attention.key_norm).chain(&attention.value_norm);
    of_heads.chain(&attention.output_norm).try_for_each(norm)
}

fn position_bias(bias: &PositionBias) -> Result<(), String> {
    match bias {
        PositionBias::Slopes(slopes) => positive([slopes.exponent, slopes.scale]),
        PositionBias::Buckets(buckets) => {
            in_range("number of buckets of distances", buckets.count, 1 << 12)?;
            if !buckets.count.is_multiple_of(4) {
                return Err(format!("there are {} buckets of distances, expected a multiple of 4", buckets.count));
            }
            in_range("greatest distance with a bucket of its own", buckets.reach, 1 << 20)?;
            if buckets.reach <= buckets.count / 4 {
                let least = buckets.count / 4 + 1;
                return Err(format!("the distance of the last bucket is {}, expected at least {least}", buckets.reach));
            }
            Ok(())
        }
    }
}

fn growth(growth: &QueryGrowth) -> Result<(), String> {
    if !growth.weight.is_finite() || growth.weight < 0.0 || !growth.offset.is_finite() || growth.offset < 0.0 {
        return Err(format!("the growth of queries is {growth:?}, expected no negative numbers"));
    }
    positive([growth.length])
}

fn latent(latent: &Latent) -> Result<(), String> {
    heads(latent.heads, 1)?;
    for (what, size) in [
        ("size of the positionless part of a head", latent.nope_dim),
        ("size of the rotated part of a head", latent.rope_dim),
        ("size of value heads", latent.value_dim),
        ("rank of keys and values", latent.rank),
    ] {
        in_range(what, size, 1 << 16)?;
    }
    positive([latent.scale])?;
    latent.query_growth.iter().try_for_each(growth)?;
    rope(&latent.rope, latent.rope_dim)?;
    if latent.rope.rotated(latent.rope_dim) != latent.rope_dim {
        return Err("RoPE of latent attention rotates all elements that there are for it".to_owned());
    }
    if [&latent.keys, &latent.values].iter().any(|matrices| matrices.tensors().count() > 1) {
        return Err("heads of latent attention have no biases".to_owned());
    }
    norm(&latent.norm)?;
    latent.indexer.iter().try_for_each(|own| indexer(own, latent))?;
    match &latent.query {
        LatentQuery::Plain(_) => Ok(()),
        LatentQuery::LowRank(query) => {
            in_range("rank of queries", query.rank, 1 << 20)?;
            norm(&query.norm)
        }
    }
}

fn indexer(own: &Indexer, latent: &Latent) -> Result<(), String> {
    in_range("number of heads of the indexer", own.heads, 1 << 14)?;
    in_range("head size of the indexer", own.head_dim, 1 << 16)?;
    in_range("number of positions that an indexer chooses", own.count, 1 << 32)?;
    if own.head_dim < latent.rope_dim {
        let (size, rotated) = (own.head_dim, latent.rope_dim);
        return Err(format!("heads of the indexer have {size} elements, expected at least the {rotated} rotated ones"));
    }
    if matches!(latent.query, LatentQuery::Plain(_)) {
        return Err("an indexer reads the low-rank row of queries, which the model does not have".to_owned());
    }
    norm(&own.key_norm)
}

fn block_indexer(own: &BlockIndexer, attention: &Attention) -> Result<(), String> {
    in_range("number of heads of the indexer", own.heads, 1 << 14)?;
    in_range("head size of the indexer", own.head_dim, 1 << 16)?;
    in_range("number of positions of a block", own.block, 1 << 16)?;
    in_range("number of blocks that an indexer chooses", own.count, 1 << 32)?;
    let rotated = attention.rope.as_ref().map_or(0, |rope| rope.rotated(attention.head_dim));
    if own.head_dim < rotated {
        let size = own.head_dim;
        return Err(format!("heads of the indexer have {size} elements, expected at least the {rotated} rotated ones"));
    }
    if attention.window.is_some() || attention.chunk.is_some() || attention.reads_layer.is_some() {
        return Err("attention with an indexer has a window, chunks or the keys of another layer".to_owned());
    }
    match own.rule {
        BlockRule::Greatest { .. } if !attention.heads.is_multiple_of(own.heads) => {
            let [heads, own] = [attention.heads, own.heads];
            return Err(format!("{heads} attention heads cannot share the choice of {own} heads evenly"));
        }
        BlockRule::Greatest { local } if local > own.count => {
            return Err(format!("{local} blocks are always chosen, expected at most {}", own.count));
        }
        _ => {}
    }
    [&own.query_norm, &own.key_norm].into_iter().try_for_each(norm)
}

fn compressed(own: &CompressedAttention) -> Result<(), String> {
    heads(own.heads, 1)?;
    in_range("number of groups of heads", own.groups, own.heads)?;
    if !own.heads.is_multiple_of(own.groups) {
        return Err(format!("{} attention heads are not {} groups of equal size", own.heads, own.groups));
    }
    in_range("head size", own.head_dim, 1 << 16)?;
    in_range("rank of queries", own.query.rank, 1 << 20)?;
    in_range("rank of a group of heads", own.rank, 1 << 16)?;
    in_range("sliding window", own.window, 1 << 40)?;
    positive([own.scale])?;
    rope(&own.rope, own.rope_dim)?;
    if own.rope_dim > own.head_dim {
        return Err(format!("RoPE rotates {} elements, heads have {}", own.rope_dim, own.head_dim));
    }
    if own.rope.rotated(own.rope_dim) != own.rope_dim {
        return Err(format!("RoPE has frequencies for fewer than the {} rotated elements", own.rope_dim));
    }
    if own.group_outputs.tensors().count() > 1 {
        return Err("groups of heads have no biases".to_owned());
    }
    [&own.query.norm, &own.query_norm, &own.key_norm].into_iter().try_for_each(norm)?;
    let Some(entries) = &own.entries else { return Ok(()) };
    compression(&entries.compression)?;
    let Some(indexer) = &entries.indexer else { return Ok(()) };
    in_range("number of heads of the indexer", indexer.heads, 1 << 14)?;
    in_range("head size of the indexer", indexer.head_dim, 1 << 16)?;
    in_range("number of entries that an indexer chooses", indexer.count, 1 << 32)?;
    if indexer.head_dim < own.rope_dim {
        let (size, rotated) = (indexer.head_dim, own.rope_dim);
        return Err(format!("heads of the indexer have {size} elements, expected at least the {rotated} rotated ones"));
    }
    let [own, of_indexer] = [&entries.compression, &indexer.compression].map(|own| own.every);
    if own != of_indexer {
        return Err(format!("the indexer has entries of {of_indexer} positions, attention has those of {own}"));
    }
    compression(&indexer.compression)
}

fn compression(own: &Compression) -> Result<(), String> {
    if !(2..=1 << 16).contains(&own.every) {
        return Err(format!("an entry stands for {} positions, expected 2 to {}", own.every, 1 << 16));
    }
    norm(&own.norm)
}

fn delta_net(net: &DeltaNet) -> Result<(), String> {
    heads(net.value_heads, net.key_heads)?;
    in_range("head size", net.key_dim, 1 << 12)?;
    in_range("size of value heads", net.value_dim, 1 << 12)?;
    in_range("width of the convolution", net.kernel, MAX_KERNEL)?;
    positive([net.beta_scale])?;
    for input in [&net.gate, &net.decay] {
        if let DeltaInput::LowRank(own) = input {
            in_range("rank of a projection", own.rank, 1 << 20)?;
        }
    }
    norm(&net.norm)
}

fn short_conv(conv: &ShortConv) -> Result<(), String> {
    in_range("number of channels", conv.width, 1 << 20)?;
    in_range("width of the convolution", conv.kernel, MAX_KERNEL)
}

fn state_space(own: &StateSpace) -> Result<(), String> {
    heads(own.heads, own.groups)?;
    in_range("head size", own.head_dim, 1 << 12)?;
    in_range("size of the state", own.state_dim, 1 << 12)?;
    in_range("width of the convolution", own.kernel, MAX_KERNEL)?;
    if own.scales.iter().flatten().any(|scale| !scale.is_finite()) {
        return Err("a factor of a state space model is not a number".to_owned());
    }
    let (least, most) = own.step_limits;
    if !least.is_finite() || least < 0.0 || most.is_some_and(|most| most.is_nan() || most < least) {
        return Err(format!("steps are limited to {:?}, expected no negative range", own.step_limits));
    }
    let Some(gated) = &own.norm else { return Ok(()) };
    let width = own.heads * own.head_dim;
    in_range("number of groups that are normalized", gated.groups, width)?;
    if !width.is_multiple_of(gated.groups) {
        return Err(format!("{width} elements are not {} groups of equal size", gated.groups));
    }
    norm(&gated.norm)
}

fn selective_scan(own: &SelectiveScan) -> Result<(), String> {
    in_range("number of channels", own.width, 1 << 20)?;
    in_range("size of the state", own.state_dim, 1 << 12)?;
    in_range("rank of steps", own.step.rank, 1 << 20)?;
    in_range("width of the convolution", own.kernel, MAX_KERNEL)?;
    [&own.step.norm, &own.write.norm, &own.read.norm].into_iter().flatten().try_for_each(norm)
}

fn linear_attention(own: &LinearAttention) -> Result<(), String> {
    heads(own.heads, own.heads)?;
    in_range("head size", own.head_dim, 1 << 12)?;
    positive([own.decay_scale])?;
    if own.activation.limit().is_some() {
        return Err("a clamped activation needs a gate".to_owned());
    }
    norm(&own.norm)
}
