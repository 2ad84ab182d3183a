//! Checks that the numbers of a blueprint are consistent and below limits that no model exceeds, so
//! that allocations are bounded and arithmetic does not overflow.

mod mixers;
mod named;
mod tower;

use mixers::mixer;
pub(crate) use named::adaptable;
pub(super) use named::{names as names_of, names_of_every_token, names_of_tower};
pub(crate) use tower::MOST_ROWS;

use super::{
    Activation, Attention, Blueprint, Branch, Experts, Ffn, Gated, Layer, LayerEmbeddings, LayerStreams,
    LearnedResidual, Mixer, Network, NgramEmbedding, NgramInput, Norm, NormKind, Residual, Router, SecondMixer,
    StreamMix, Streams,
};

/// Limit of the number of layers; more than any model has.
pub(crate) const MAX_LAYERS: u64 = 4096;
/// Limit of the number of experts of a layer; more than any layer has.
const MAX_EXPERTS: u64 = 1 << 16;
/// Limit of the number of tables of n-grams of a layer; more than any layer has.
pub(crate) const MAX_NGRAM_TABLES: u64 = 1 << 10;
/// Limit of the number of tables of n-grams of all layers; bounds the time for finding their sizes.
pub(crate) const MAX_NGRAM_TABLES_IN_ALL: u64 = 1 << 12;
/// Limit of the number of tokens of an n-gram.
pub(crate) const MAX_NGRAM: usize = 16;
/// Limit of the number of experts of a model; more than any model has.
const MAX_EXPERTS_IN_ALL: u64 = 1 << 18;

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
        self.check_embedder()?;
        if !self.causal && self.output.is_some() {
            return Err("a model that sees later tokens has no next one to tell".to_owned());
        }
        let experts = self.layers.iter().map(|layer| expert_count(&layer.ffn));
        if experts.fold(0, u64::saturating_add) > MAX_EXPERTS_IN_ALL {
            return Err(format!("there are more than {MAX_EXPERTS_IN_ALL} experts in all layers"));
        }
        self.embedding.of_layers.iter().try_for_each(layer_embeddings)?;
        self.check_token_rows()?;
        self.check_streams()?;
        for (index, each) in (0u64..).zip(&self.layers) {
            layer(each)?;
            self.check_reads(index, each)?;
            if !self.causal && !each.mixers().all(|mixer| matches!(mixer, Mixer::Attention(_) | Mixer::None)) {
                return Err("a layer without attention cannot see later tokens".to_owned());
            }
            if !self.causal && each.mixer.block_indexer().is_some() {
                return Err("an indexer cannot choose among later tokens".to_owned());
            }
        }
        tower::pictures(&self)?;
        named::check(&self)?;
        Ok(self)
    }
}

impl Blueprint {
    /// Checks that each layer behind pooling takes what the one before it computes.
    fn check_embedder(&self) -> Result<(), String> {
        let Some(first) = self.embedder.first() else { return Ok(()) };
        if self.scorer.is_some() {
            return Err("a model with scores has no layers that compute embeddings".to_owned());
        }
        if !first.inputs.is_multiple_of(self.hidden) {
            return Err(format!(
                "the first layer behind pooling takes {} numbers, expected a multiple of the hidden size {}",
                first.inputs, self.hidden
            ));
        }
        for (layer, next) in self.embedder.iter().zip(self.embedder.iter().skip(1)) {
            if layer.width != next.inputs {
                let (width, inputs) = (layer.width, next.inputs);
                return Err(format!(
                    "a layer behind pooling takes {inputs} numbers, the one before it computes {width}"
                ));
            }
        }
        self.embedder.iter().try_for_each(|layer| {
            in_range("inputs of a layer behind pooling", layer.inputs, 1 << 20)?;
            in_range("width of embeddings", layer.width, 1 << 20)
        })
    }

    /// Checks the numbers of tokens that layers read besides the stream.
    fn check_token_rows(&self) -> Result<(), String> {
        let mut ngrams = self.layers.iter().filter_map(|layer| layer.ngrams.as_ref()).peekable();
        let has_some = ngrams.peek().is_some();
        if has_some && !self.causal {
            return Err("n-grams need a model that sees earlier tokens only".to_owned());
        }
        if self.embedding.norm.is_some() && (has_some || self.embedding.of_layers.is_some()) {
            return Err("a norm of the embedding would also normalize the embeddings behind it".to_owned());
        }
        let has_others = has_some || self.embedding.of_layers.is_some() || self.embedding.norm.is_some();
        if has_others && self.layers.iter().any(|layer| layer.experts_of_tokens().is_some()) {
            return Err("a model with experts of tokens has no embeddings of n-grams or layers, and no norm of the \
                 embedding"
                .to_owned());
        }
        let tables = ngrams.map(|own| own.embedding.sizes.len() as u64).fold(0, u64::saturating_add);
        if tables > MAX_NGRAM_TABLES_IN_ALL {
            return Err(format!("there are {tables} tables of n-grams, at most {MAX_NGRAM_TABLES_IN_ALL}"));
        }
        Ok(())
    }

    /// Checks the streams, and that all layers have them or none.
    fn check_streams(&self) -> Result<(), String> {
        let is_alike = |layer: &Layer| match (&self.streams, &layer.streams) {
            (None, None) | (Some(Streams::Predicted(_)), Some(LayerStreams::Predicted(_))) => layer.ngrams.is_none(),
            (Some(Streams::Connected(_)), Some(LayerStreams::Connected(_)))
            | (Some(Streams::Balanced(_)), Some(LayerStreams::Balanced(_))) => true,
            _ => false,
        };
        if !self.layers.iter().all(is_alike) {
            return Err("the layers have streams of different kinds, or some of them have none".to_owned());
        }
        let Some(streams) = &self.streams else { return Ok(()) };
        in_range("number of streams", streams.count(), 16)?;
        match streams {
            Streams::Predicted(own) if own.active >= own.count => {
                return Err(format!("the active stream is {}, there are {}", own.active, own.count));
            }
            Streams::Predicted(_) => {}
            Streams::Connected(own) => stream_mix(&own.leave)?,
            Streams::Balanced(own) => {
                positive([own.epsilon])?;
                in_range("number of times that shares of streams are balanced", own.iterations, 1 << 10)?;
                norm(&own.leave.norm)?;
            }
        }
        if self.layers.iter().any(|layer| layer.parallel || layer.scale.is_some()) {
            return Err("layers of several streams have no parallel parts or factors of their output".to_owned());
        }
        self.layers.iter().try_for_each(|layer| match &layer.streams {
            Some(LayerStreams::Predicted(own)) => norm(&own.norm),
            Some(LayerStreams::Connected(own)) => {
                stream_mix(&own.mixer.mix)?;
                stream_mix(&own.ffn.mix)?;
                connected_layer(layer, self.embedding.of_layers.is_some())
            }
            Some(LayerStreams::Balanced(own)) => {
                [&own.mixer.norm, &own.ffn.norm].into_iter().try_for_each(norm)?;
                connected_layer(layer, self.embedding.of_layers.is_some())
            }
            None => Ok(()),
        })
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

fn stream_mix(own: &StreamMix) -> Result<(), String> {
    in_range("rank of a mix of streams", own.rank, 1 << 20)?;
    norm(&own.norm)
}

fn connected_layer(layer: &Layer, has_embeddings: bool) -> Result<(), String> {
    let residuals = [&layer.mixer_residual, &layer.ffn_residual];
    let has_more = |residual: &&Residual| residual.sum.is_some() || residual.scale.is_some();
    if residuals.iter().any(has_more) || layer.learned_residual.is_some() {
        return Err("parts of layers that are connected to streams have no other residuals".to_owned());
    }
    if layer.token_input.is_some() || has_embeddings {
        return Err("layers that are connected to streams have no embeddings of their own".to_owned());
    }
    layer.ngrams.as_deref().map_or(Ok(()), ngrams)
}

fn ngrams(own: &NgramInput) -> Result<(), String> {
    let NgramEmbedding { tables, width, multipliers, sizes, .. } = &own.embedding;
    in_range("number of tensors with n-grams", tables.len() as u64, 1 << 16)?;
    in_range("width of n-grams", *width, 1 << 12)?;
    in_range("number of tables of n-grams", sizes.len() as u64, MAX_NGRAM_TABLES)?;
    if !(2..=MAX_NGRAM).contains(&multipliers.len()) || !sizes.len().is_multiple_of(multipliers.len() - 1) {
        let (tables, tokens) = (sizes.len(), multipliers.len());
        return Err(format!("there are {tables} tables for n-grams of 2 to {tokens} tokens, expected as many of each"));
    }
    sizes.iter().try_for_each(|size| in_range("number of rows of a table of n-grams", *size, 1 << 40))?;
    in_range("width of the convolution", own.kernel, 1 << 8)?;
    in_range("distance of the positions of the convolution", own.dilation, MAX_NGRAM as u64)?;
    [&own.key_norm, &own.query_norm, &own.convolution_norm].into_iter().try_for_each(norm)
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
    positive([own.projection_scale, own.sum_scale])?;
    if let Some(table) = &own.table {
        in_range("number of tokens with embeddings of layers", table.rows, 1 << 24)?;
        positive([table.scale])?;
    }
    norm(&own.norm)
}

pub(super) fn in_range(what: &str, value: u64, largest: u64) -> Result<(), String> {
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
    match norm.kind {
        NormKind::Factors if norm.epsilon == 0.0 => {}
        NormKind::Factors => return Err("factors without a normalization have an epsilon".to_owned()),
        NormKind::Rms | NormKind::Layer => positive([norm.epsilon])?,
    }
    if !norm.offset.is_finite() {
        return Err("what is added to the weights of a norm is not a number".to_owned());
    }
    Ok(())
}

fn learned_residual(own: &LearnedResidual) -> Result<(), String> {
    in_range("rank of a learned residual", own.rank, 1 << 20)?;
    positive([own.scale])?;
    norm(&own.norm)
}

fn second_mixer(own: &SecondMixer) -> Result<(), String> {
    if matches!(own.mixer, Mixer::Attention(_) | Mixer::Latent(_) | Mixer::Compressed(_) | Mixer::None) {
        return Err("the second mixer of a layer is attention or missing, expected a recurrent one".to_owned());
    }
    positive([own.scale])
}

fn layer(layer: &Layer) -> Result<(), String> {
    layer.mixers().try_for_each(mixer)?;
    if layer.mixer == Mixer::None && (layer.second_mixer.is_some() || layer.learned_residual.is_some()) {
        return Err("a layer without a mixer has a second one or a learned residual beside it".to_owned());
    }
    layer.second_mixer.as_deref().map_or(Ok(()), second_mixer)?;
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
        Ffn::Experts(own) if own.router.of_tokens.is_some() => {
            Err("experts of a sum of networks are chosen by their scores".to_owned())
        }
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

fn plain(width: u64, activation: Activation) -> Result<(), String> {
    if activation.limit().is_some() {
        return Err("a clamped activation needs a gate".to_owned());
    }
    network(width, activation)
}

fn network(width: u64, activation: Activation) -> Result<(), String> {
    positive(activation.limit())?;
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
    if router.of_tokens.is_some() && (router.bias.is_some() || router.groups.is_some() || router.nearness.is_some()) {
        return Err("experts that a table gives to tokens are not chosen by biases, groups or nearness".to_owned());
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
