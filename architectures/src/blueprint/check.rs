//! Checks that the numbers of a blueprint are consistent and below limits that no model exceeds, so
//! that allocations are bounded and arithmetic does not overflow.

mod named;

pub(crate) use named::adaptable;
pub(super) use named::{names as names_of, names_of_every_token};

use super::{
    Activation, Attention, Beside, Blueprint, Branch, DeltaInput, DeltaNet, Experts, Ffn, Gated, Indexer, Latent,
    LatentQuery, Layer, LayerEmbeddings, LearnedResidual, Mixer, Network, Norm, PositionBias, QueryGrowth, Residual,
    Router, SelectiveScan, ShortConv, StateSpace,
};

/// Limit of the number of layers; more than any model has.
pub(crate) const MAX_LAYERS: u64 = 4096;
/// Limit of the number of experts of a layer; more than any layer has.
const MAX_EXPERTS: u64 = 1 << 16;
/// Limit of the number of experts of a model; more than any model has.
const MAX_EXPERTS_IN_ALL: u64 = 1 << 18;
/// Limit of the kernel of short convolutions; more than any model has.
const MAX_KERNEL: u64 = 1 << 8;

impl Blueprint {
    /// Checks the whole blueprint.
    ///
    /// # Errors
    /// A value is invalid; the text states the expected value.
    pub(crate) fn check(self) -> Result<Self, String> {
        in_range("vocabulary size", self.vocabulary, 1 << 24)?;
        in_range("hidden size", self.hidden, 1 << 20)?;
        in_range("number of layers", self.layers.len() as u64, MAX_LAYERS)?;
        in_range("context length", self.context, 1 << 40)?;
        positive(self.embedding.scale)?;
        if let Some(positions) = &self.embedding.positions {
            in_range("number of learned positions", positions.rows, 1 << 32)?;
            if positions.offset >= positions.rows || self.context > positions.rows - positions.offset {
                let rows = positions.rows;
                return Err(format!("context length is {}, there are {rows} learned positions", self.context));
            }
        }
        if let Some(types) = &self.embedding.types {
            in_range("number of token types", types.count, 1 << 16)?;
        }
        if let Some(scorer) = &self.scorer {
            in_range("number of labels", scorer.labels, 1 << 16)?;
            if scorer.score.is_some_and(|score| score.yes.max(score.no.unwrap_or(0)) >= scorer.labels) {
                return Err(format!("a score is a number beyond the {} of its head", scorer.labels));
            }
            scorer.dense.iter().filter_map(|dense| dense.norm.as_ref()).try_for_each(norm)?;
        }
        self.embedding.norm.iter().chain(&self.norm).try_for_each(norm)?;
        if let Some(output) = &self.output {
            positive([output.scale, output.soft_cap].into_iter().flatten())?;
            output.head.iter().map(|head| &head.norm).try_for_each(norm)?;
        }
        if !self.causal && self.output.is_some() {
            return Err("a model that sees later tokens has no next one to tell".to_owned());
        }
        let experts = self.layers.iter().map(|layer| expert_count(&layer.ffn));
        if experts.fold(0, u64::saturating_add) > MAX_EXPERTS_IN_ALL {
            return Err(format!("there are more than {MAX_EXPERTS_IN_ALL} experts in all layers"));
        }
        self.embedding.of_layers.iter().try_for_each(layer_embeddings)?;
        self.check_streams()?;
        for (index, each) in (0u64..).zip(&self.layers) {
            layer(each)?;
            self.check_reads(index, each)?;
            if !self.causal && !each.mixers().all(|mixer| matches!(mixer, Mixer::Attention(_) | Mixer::None)) {
                return Err("a layer without attention cannot see later tokens".to_owned());
            }
        }
        named::check(&self)?;
        Ok(self)
    }
}

impl Blueprint {
    /// Checks the streams, and that all layers have them or none.
    fn check_streams(&self) -> Result<(), String> {
        if self.layers.iter().any(|layer| layer.streams.is_some() != self.streams.is_some()) {
            return Err("some layers compute several streams, others one".to_owned());
        }
        let Some(streams) = &self.streams else { return Ok(()) };
        in_range("number of streams", streams.count, 16)?;
        if streams.active >= streams.count {
            return Err(format!("the active stream is {}, there are {}", streams.active, streams.count));
        }
        if self.layers.iter().any(|layer| layer.parallel || layer.scale.is_some()) {
            return Err("layers of several streams have no parallel parts or factors of their output".to_owned());
        }
        self.layers.iter().flat_map(|layer| &layer.streams).map(|own| &own.norm).try_for_each(norm)
    }

    /// Checks what a layer reads of earlier layers and of the embedding.
    fn check_reads(&self, index: u64, layer: &Layer) -> Result<(), String> {
        if layer.token_input.is_some() && self.embedding.of_layers.is_none() {
            return Err("a layer reads its own embedding, but there are no embeddings of layers".to_owned());
        }
        let Mixer::Attention(attention) = &layer.mixer else { return Ok(()) };
        let Some(source) = attention.reads_layer else { return Ok(()) };
        let from = self.layers.get(source as usize).filter(|_| source < index && self.causal);
        let is_alike = |from: &Layer| match &from.mixer {
            Mixer::Attention(own) => {
                let sizes = |own: &Attention| (own.kv_heads, own.head_dim, own.value_dim, own.window);
                own.reads_layer.is_none() && sizes(own) == sizes(attention)
            }
            _ => false,
        };
        if from.is_some_and(is_alike) {
            return Ok(());
        }
        Err(format!("layer {index} reads the keys of layer {source}, which is no earlier attention of the same sizes"))
    }
}

fn expert_count(ffn: &Ffn) -> u64 {
    match ffn {
        Ffn::Experts(experts) => experts.count,
        Ffn::Sum(branches) => branches.iter().map(|branch| expert_count(&branch.ffn)).fold(0, u64::saturating_add),
        _ => 0,
    }
}

fn layer_embeddings(own: &LayerEmbeddings) -> Result<(), String> {
    in_range("width of the embeddings of layers", own.width, 1 << 16)?;
    in_range("number of tokens with embeddings of layers", own.rows, 1 << 24)?;
    positive([own.table_scale, own.projection_scale, own.sum_scale])?;
    norm(&own.norm)
}

fn in_range(what: &str, value: u64, largest: u64) -> Result<(), String> {
    if value == 0 || value > largest {
        return Err(format!("{what} is {value}, expected 1 to {largest}"));
    }
    Ok(())
}

fn positive(numbers: impl IntoIterator<Item = f64>) -> Result<(), String> {
    if numbers.into_iter().any(|number| !number.is_finite() || number <= 0.0) {
        return Err("a norm epsilon, scale, cap or number of RoPE is not a positive number".to_owned());
    }
    Ok(())
}

fn norm(norm: &Norm) -> Result<(), String> {
    positive([norm.epsilon])?;
    if !norm.offset.is_finite() {
        return Err("what is added to the weights of a norm is not a number".to_owned());
    }
    Ok(())
}

fn mixer(mixer: &Mixer) -> Result<(), String> {
    match mixer {
        Mixer::Attention(own) => attention(own),
        Mixer::Latent(own) => latent(own),
        Mixer::DeltaNet(own) => delta_net(own),
        Mixer::ShortConv(own) => short_conv(own),
        Mixer::StateSpace(own) => state_space(own),
        Mixer::SelectiveScan(own) => selective_scan(own),
        Mixer::None => Ok(()),
    }
}

fn learned_residual(own: &LearnedResidual) -> Result<(), String> {
    in_range("rank of a learned residual", own.rank, 1 << 20)?;
    positive([own.scale])?;
    norm(&own.norm)
}

fn beside(own: &Beside) -> Result<(), String> {
    if matches!(own.mixer, Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None) {
        return Err("the second mixer of a layer is attention or missing, expected a recurrent one".to_owned());
    }
    positive([own.scale])
}

fn layer(layer: &Layer) -> Result<(), String> {
    layer.mixers().try_for_each(mixer)?;
    if layer.mixer == Mixer::None && (layer.beside.is_some() || layer.learned_residual.is_some()) {
        return Err("a layer without a mixer has a second one or a learned residual beside it".to_owned());
    }
    layer.beside.as_deref().map_or(Ok(()), beside)?;
    layer.learned_residual.as_deref().map_or(Ok(()), learned_residual)?;
    match &layer.ffn {
        Ffn::Gated(own) => gated(own)?,
        Ffn::Plain(own) => plain(own.width, own.activation)?,
        Ffn::Experts(all) => experts(all)?,
        Ffn::Sum(branches) => branches.iter().try_for_each(branch)?,
        Ffn::None if layer.mixer == Mixer::None => return Err("a layer has neither a mixer nor a network".to_owned()),
        Ffn::None => {}
    }
    if layer.parallel && layer.learned_residual.is_some() {
        return Err("parts of a layer that are added together have no learned residual in between".to_owned());
    }
    if layer.parallel && layer.mixer_residual.sum.is_some() {
        return Err("parts of a layer that are added together cannot be normed in between".to_owned());
    }
    layer.token_input.iter().map(|input| &input.norm).try_for_each(norm)?;
    [&layer.mixer_residual, &layer.ffn_residual].into_iter().try_for_each(residual)
}

fn branch(branch: &Branch) -> Result<(), String> {
    branch.before.iter().chain(&branch.after).try_for_each(norm)?;
    match &branch.ffn {
        Ffn::Gated(own) => gated(own),
        Ffn::Plain(own) => plain(own.width, own.activation),
        Ffn::Experts(own) => experts(own),
        Ffn::Sum(_) | Ffn::None => Err("a sum of networks has only gated and plain networks and experts".to_owned()),
    }
}

fn gated(own: &Gated) -> Result<(), String> {
    network(own.width, own.activation)?;
    positive(own.gate_scale)?;
    if own.cutoff.is_some_and(|cutoff| !cutoff.is_finite()) {
        return Err("the cutoff of a gate is not a number".to_owned());
    }
    own.norm.iter().try_for_each(norm)
}

fn residual(residual: &Residual) -> Result<(), String> {
    positive(residual.scale)?;
    residual.before.iter().chain(&residual.after).chain(&residual.sum).try_for_each(norm)
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
    attention.query_growth.iter().try_for_each(growth)?;
    attention.position_bias.iter().try_for_each(position_bias)?;
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

fn plain(width: u64, activation: Activation) -> Result<(), String> {
    if matches!(activation, Activation::ClampedSilu { .. }) {
        return Err("a clamped activation needs a gate".to_owned());
    }
    network(width, activation)
}

fn network(width: u64, activation: Activation) -> Result<(), String> {
    if let Activation::ClampedSilu { limit } = activation {
        positive([limit])?;
    }
    in_range("intermediate size", width, 1 << 22)
}

fn experts(experts: &Experts) -> Result<(), String> {
    in_range("number of experts", experts.count, MAX_EXPERTS)?;
    let check = if experts.gate.is_some() { network } else { plain };
    check(experts.width, experts.activation)?;
    router(&experts.router, experts.count)?;
    experts.input_norm.iter().chain(&experts.router.norm).try_for_each(norm)?;
    if let Some(latent) = &experts.latent {
        in_range("width of the inputs of experts", latent.width, 1 << 20)?;
    }
    experts.shared.iter().try_for_each(|shared| match &shared.ffn {
        Network::Gated(own) => gated(own),
        Network::Plain(own) => plain(own.width, own.activation),
    })
}

fn router(router: &Router, experts: u64) -> Result<(), String> {
    in_range("number of experts that a token takes", router.top_k, experts)?;
    positive([Some(router.scale), router.logit_scale, router.nearness].into_iter().flatten())?;
    if router.nearness.is_some() && (router.bias.is_some() || router.groups.is_some()) {
        return Err("experts that are chosen one after the other have neither biases nor groups".to_owned());
    }
    let Some(groups) = router.groups else { return Ok(()) };
    in_range("number of expert groups", groups.count, experts)?;
    if !experts.is_multiple_of(groups.count) {
        return Err(format!("{experts} experts are not {} groups of equal size", groups.count));
    }
    in_range("number of expert groups that are kept", groups.keep, groups.count)?;
    let size = experts / groups.count;
    in_range("number of experts that tell how good a group is", groups.best, size)?;
    if router.top_k > groups.keep * size {
        return Err(format!("a token uses {} experts from {} groups of {size}", router.top_k, groups.keep));
    }
    Ok(())
}
