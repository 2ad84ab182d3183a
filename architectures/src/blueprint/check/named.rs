//! Checks of tensor names and views. Names become keys of messages and maps. They are never used as
//! paths, but they may be long. Views are checked against the tensors when the tensors are loaded.

use crate::blueprint::{
    Adaptable, Blueprint, CompressedAttention, Compression, Experts, Ffn, Gated, Latent, LatentQuery, Layer,
    LayerStreams, Matrices, Mixer, Network, Norm, PatchPositions, Plain, PositionBias, Positions, Projection, Rows,
    StreamMix, StreamNumbers, Streams, Tensor, Tower, View,
};
use crate::rope::Divisors;

/// Longest name of a tensor, in bytes.
const MAX_NAME: usize = 4096;
/// Limit of the number of rows; more than any tensor has.
const MAX_ROWS: u64 = 1 << 32;

pub(super) fn check(blueprint: &Blueprint) -> Result<(), String> {
    let mut all = NamedParts::default();
    all.blueprint(blueprint);
    if let Some(tensor) = all.all().find(|tensor| !is_possible(tensor.view)) {
        let shown: String = tensor.name.chars().take(60).collect();
        return Err(format!("the view of `{shown}` is {:?}, which is out of range for any tensor", tensor.view));
    }
    if all.blocks.iter().any(|tensor| tensor.view.rows.is_none()) {
        return Err("matrices that are blocks of rows do not say which".to_owned());
    }
    match all.all().map(|tensor| tensor.name.len()).chain(all.projections.iter().map(|own| own.module.len())).max() {
        Some(length) if length > MAX_NAME => Err(format!("a tensor's name has {length} bytes, at most {MAX_NAME}")),
        _ => Ok(()),
    }
}

/// Returns the names of all tensors, with `{}` for the indices of experts and heads.
pub(in crate::blueprint) fn names(blueprint: &Blueprint) -> impl Iterator<Item = &str> {
    let mut all = NamedParts::default();
    all.blueprint(blueprint);
    all.tensors.into_iter().chain(all.experts).map(|tensor| tensor.name.as_str())
}

/// Returns the names of tensors that every token reads completely, in the order of layers. Tables
/// of which a token reads one row, and experts, are not among them.
pub(in crate::blueprint) fn names_of_every_token(blueprint: &Blueprint) -> impl Iterator<Item = &str> {
    let mut all = NamedParts::default();
    blueprint.layers.iter().for_each(|layer| all.layer(layer));
    all.norms(&blueprint.norm);
    all.projections(blueprint.embedder.iter().map(|layer| &layer.projection));
    all.output(blueprint);
    all.tensors.into_iter().map(|tensor| tensor.name.as_str())
}

/// Returns the names of the tensors of the tower.
pub(in crate::blueprint) fn names_of_tower(blueprint: &Blueprint) -> impl Iterator<Item = &str> {
    let mut all = NamedParts::default();
    blueprint.tower().into_iter().for_each(|tower| all.tower(tower));
    all.tensors.into_iter().map(|tensor| tensor.name.as_str())
}

/// Returns the projections that adapters can change.
pub(crate) fn adaptable(blueprint: &Blueprint) -> Vec<Adaptable<'_>> {
    let mut all = NamedParts::default();
    all.blueprint(blueprint);
    let one = all.projections.into_iter().map(Adaptable::One);
    one.chain(all.many.into_iter().map(|(matrices, count)| Adaptable::Many(matrices, count))).collect()
}

fn is_possible(view: View) -> bool {
    let whole_blocks = |rows: Rows| {
        let fits = rows.block > 0 && rows.count > 0 && rows.count.is_multiple_of(rows.block);
        fits && rows.stride >= rows.block && rows.end().is_some_and(|end| end <= MAX_ROWS)
    };
    view.item.is_none_or(|item| item < MAX_ROWS) && view.rows.is_none_or(whole_blocks)
}

/// All named parts of a blueprint.
#[derive(Default)]
struct NamedParts<'a> {
    /// Tensors, except for experts.
    tensors: Vec<&'a Tensor>,
    experts: Vec<&'a Tensor>,
    /// Tensors in which each block of rows is a matrix.
    blocks: Vec<&'a Tensor>,
    /// Projections, except for experts and heads.
    projections: Vec<&'a Projection>,
    /// Projections of experts and heads, with their number.
    many: Vec<(&'a Matrices, u64)>,
}

impl<'a> NamedParts<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Tensor> {
        self.tensors.iter().chain(&self.experts).copied()
    }

    fn blueprint(&mut self, blueprint: &'a Blueprint) {
        let embedding = &blueprint.embedding;
        self.tensors.push(&embedding.weight);
        self.tensors.extend(embedding.positions.as_ref().and_then(Positions::learned));
        self.tensors.extend(embedding.types.as_ref().map(|types| &types.weight));
        self.norms(embedding.norm.iter().chain(&blueprint.norm));
        self.output(blueprint);
        self.projections(blueprint.embedder.iter().map(|layer| &layer.projection));
        if let Some(of_layers) = &embedding.of_layers {
            self.tensors.extend(of_layers.table.as_ref().map(|table| &table.weight));
            self.projections([&of_layers.projection]);
            self.norms([&of_layers.norm]);
        }
        match &blueprint.streams {
            Some(Streams::Predicted(own)) => {
                self.heads(&own.enter, own.count - 1);
                self.heads(&own.leave, own.count - 1);
            }
            Some(Streams::Connected(own)) => self.stream_mix(&own.leave),
            Some(Streams::Balanced(own)) => self.stream_numbers(&own.leave),
            None => {}
        }
        self.tensors.extend(blueprint.layer_tables());
        self.scorer(blueprint);
        blueprint.layers.iter().for_each(|layer| self.layer(layer));
        if let Some(tower) = blueprint.tower() {
            self.tower(tower);
        }
    }

    fn tower(&mut self, tower: &'a Tower) {
        self.projections(&tower.patches);
        match &tower.positions {
            Some(PatchPositions::Square { table, .. }) => self.tensors.push(table),
            Some(PatchPositions::Axes { columns, lines, .. }) => self.tensors.extend([columns, lines]),
            None => {}
        }
        self.tensors.extend(&tower.line_end);
        self.tensors.extend(tower.class.iter().flat_map(|class| [&class.row, &class.position]));
        self.norms(&tower.norm);
        tower.layers.iter().for_each(|layer| self.layer(layer));
        for projector in tower.projectors() {
            self.norms(projector.norm.iter().chain(&projector.joined_norm));
            self.tensors.extend(projector.standard.iter().flat_map(|own| [&own.shift, &own.factor]));
            self.projections(projector.layers.iter().map(|layer| &layer.projection));
        }
    }

    fn output(&mut self, blueprint: &'a Blueprint) {
        let Some(output) = &blueprint.output else { return };
        let head = output.head.as_deref();
        self.projections(head.map(|head| &head.projection).into_iter().chain([&output.projection]));
        self.norms(head.map(|head| &head.norm));
    }

    fn scorer(&mut self, blueprint: &'a Blueprint) {
        let dense = || blueprint.scorer.iter().filter_map(|scorer| scorer.dense.as_ref());
        self.projections(
            blueprint.scorer.iter().map(|scorer| &scorer.output).chain(dense().map(|own| &own.projection)),
        );
        self.norms(dense().filter_map(|own| own.norm.as_ref()));
    }

    fn layer(&mut self, layer: &'a Layer) {
        for residual in [&layer.mixer_residual, &layer.ffn_residual] {
            self.norms(residual.before.iter().chain(&residual.after).chain(&residual.sum));
        }
        layer.mixers().for_each(|mixer| self.mixer(mixer));
        self.ffn(&layer.ffn);
        if let Some(input) = &layer.token_input {
            self.projections([&input.gate, &input.projection]);
            self.norms([&input.norm]);
        }
        self.tensors.extend(&layer.scale);
        match &layer.streams {
            Some(LayerStreams::Predicted(own)) => {
                self.norms([&own.norm]);
                self.projections([&own.router]);
                self.tensors.extend([&own.predict, &own.correct].into_iter().chain(&own.output_scale));
            }
            Some(LayerStreams::Connected(own)) => {
                for connection in [&own.mixer, &own.ffn] {
                    self.stream_mix(&connection.mix);
                    self.projections([&connection.inject]);
                }
            }
            Some(LayerStreams::Balanced(own)) => {
                for numbers in [&own.mixer, &own.ffn] {
                    self.stream_numbers(numbers);
                }
            }
            None => {}
        }
        // Tables are not read completely.
        if let Some(own) = &layer.ngrams {
            self.projections([&own.key, &own.value]);
            self.norms([&own.key_norm, &own.query_norm, &own.convolution_norm]);
            self.tensors.push(&own.convolution);
        }
        if let Some(own) = &layer.learned_residual {
            self.projections([&own.down, &own.up]);
            self.norms([&own.norm]);
        }
    }

    fn stream_mix(&mut self, own: &'a StreamMix) {
        self.projections([&own.down, &own.up]);
        self.norms([&own.norm]);
    }

    fn stream_numbers(&mut self, own: &'a StreamNumbers) {
        self.projections([&own.projection]);
        self.tensors.extend([&own.factors, &own.bias]);
        self.norms([&own.norm]);
    }

    fn mixer(&mut self, mixer: &'a Mixer) {
        match mixer {
            Mixer::Attention(own) => {
                let gate = own.gate.as_ref().map(|gate| &gate.projection);
                self.projections([&own.query, &own.output].into_iter().chain(gate));
                self.norms(own.query_norm.iter().chain(&own.output_norm));
                if let Some(indexer) = &own.indexer {
                    self.projections([&indexer.query, &indexer.key]);
                    self.norms([&indexer.query_norm, &indexer.key_norm]);
                }
                if own.reads_layer.is_none() {
                    self.projections([&own.key]);
                    self.projections(Some(&own.value).filter(|value| **value != own.key));
                    self.norms(own.key_norm.iter().chain(&own.value_norm));
                }
                self.tensors.extend(&own.sinks);
                if let Some(PositionBias::Buckets(buckets)) = &own.position_bias {
                    self.tensors.push(&buckets.weight);
                }
                self.tensors
                    .extend(own.rope.iter().filter_map(|rope| rope.divisors.as_ref()).flat_map(Divisors::tensors));
            }
            Mixer::Latent(own) => self.latent(own),
            Mixer::Compressed(own) => self.compressed(own),
            Mixer::DeltaNet(own) => {
                self.projections([&own.query, &own.key, &own.value, &own.beta, &own.output]);
                self.projections(own.gate.projections().chain(own.decay.projections()));
                self.tensors.extend([&own.decay_bias, own.decay_rate.tensor()]);
                self.tensors.extend(&own.convolution);
                self.norms([&own.norm]);
            }
            Mixer::ShortConv(own) => {
                self.projections([&own.before, &own.after, &own.input, &own.output]);
                self.tensors.push(&own.convolution);
                self.tensors.extend(&own.convolution_bias);
            }
            Mixer::StateSpace(own) => {
                self.projections([&own.gate, &own.input, &own.write, &own.read, &own.step, &own.output]);
                self.tensors.extend([&own.step_bias, own.decay_rate.tensor(), &own.skip, &own.convolution]);
                self.tensors.extend(&own.convolution_bias);
                self.norms(own.norm.iter().map(|gated| &gated.norm));
            }
            Mixer::SelectiveScan(own) => {
                self.projections([&own.gate, &own.input, &own.step.down, &own.step.up]);
                self.projections([&own.write.by, &own.read.by, &own.output]);
                self.tensors.extend([own.decay_rate.tensor(), &own.skip, &own.convolution]);
                self.tensors.extend(&own.convolution_bias);
                self.norms([&own.step.norm, &own.write.norm, &own.read.norm].into_iter().flatten());
            }
            Mixer::LinearAttention(own) => {
                self.projections([&own.query, &own.key, &own.value, &own.gate, &own.output]);
                self.norms([&own.norm]);
            }
            Mixer::None => {}
        }
    }

    fn ffn(&mut self, ffn: &'a Ffn) {
        match ffn {
            Ffn::Gated(own) => self.gated(own),
            Ffn::Plain(own) => self.plain(own),
            Ffn::Experts(own) => self.experts(own),
            Ffn::Sum(branches) => {
                for branch in branches {
                    self.norms(branch.before.iter().chain(&branch.after));
                    self.ffn(&branch.ffn);
                }
            }
            Ffn::None => {}
        }
    }

    fn latent(&mut self, latent: &'a Latent) {
        self.projections([&latent.down, &latent.output]);
        self.norms([&latent.norm]);
        self.tensors.extend(latent.rope.divisors.iter().flat_map(Divisors::tensors));
        self.heads(&latent.keys, latent.heads);
        self.heads(&latent.values, latent.heads);
        if let Some(indexer) = &latent.indexer {
            self.projections([&indexer.query, &indexer.key, &indexer.weights]);
            self.norms([&indexer.key_norm]);
        }
        match &latent.query {
            LatentQuery::Plain(query) => self.projections([&**query]),
            LatentQuery::LowRank(query) => {
                self.projections([&query.down, &query.up]);
                self.norms([&query.norm]);
            }
        }
    }

    fn compressed(&mut self, own: &'a CompressedAttention) {
        self.projections([&own.query.down, &own.query.up, &own.key, &own.output]);
        self.norms([&own.query.norm, &own.query_norm, &own.key_norm]);
        self.tensors.push(&own.sinks);
        self.tensors.extend(own.rope.divisors.iter().flat_map(Divisors::tensors));
        self.heads(&own.group_outputs, own.groups);
        if let Some(entries) = &own.entries {
            self.compression(&entries.compression);
        }
        if let Some(indexer) = own.indexer() {
            self.projections([&indexer.query, &indexer.weights]);
            self.compression(&indexer.compression);
        }
    }

    fn compression(&mut self, own: &'a Compression) {
        self.projections([&own.value, &own.gate]);
        self.tensors.push(&own.bias);
        self.norms([&own.norm]);
    }

    fn experts(&mut self, experts: &'a Experts) {
        self.projections([&experts.router.projection]);
        self.norms(experts.input_norm.iter().chain(&experts.router.norm));
        self.tensors.extend(experts.router.bias.iter().chain(&experts.router.expert_scales));
        for matrices in experts.gate.iter().chain([&experts.up, &experts.down]) {
            self.experts.extend(matrices.tensors());
            self.many.push((matrices, experts.count));
            self.blocks(matrices);
        }
        self.projections(experts.latent.iter().flat_map(|latent| [&latent.down, &latent.up]));
        if let Some(shared) = &experts.shared {
            match &shared.ffn {
                Network::Gated(own) => self.gated(own),
                Network::Plain(own) => self.plain(own),
            }
            self.projections(&shared.gate);
        }
    }

    fn plain(&mut self, plain: &'a Plain) {
        self.projections([&plain.up, &plain.down]);
        self.tensors.extend(plain.curve.iter().flat_map(|curve| [&curve.positive, &curve.negative]));
    }

    fn gated(&mut self, gated: &'a Gated) {
        self.projections([&gated.gate, &gated.up, &gated.down]);
        self.norms(&gated.norm);
    }

    fn heads(&mut self, matrices: &'a Matrices, heads: u64) {
        self.tensors.extend(matrices.tensors());
        self.many.push((matrices, heads));
        self.blocks(matrices);
    }

    fn blocks(&mut self, matrices: &'a Matrices) {
        if let Matrices::Blocks(tensor) = matrices {
            self.blocks.push(tensor);
        }
    }

    fn projections(&mut self, projections: impl IntoIterator<Item = &'a Projection>) {
        for projection in projections {
            self.projections.push(projection);
            self.tensors.push(&projection.weight);
            self.tensors.extend(&projection.bias);
            if let Some(clamps) = &projection.clamps {
                self.tensors.extend(clamps.input.iter().chain(&clamps.output));
            }
        }
    }

    fn norms(&mut self, norms: impl IntoIterator<Item = &'a Norm>) {
        for norm in norms {
            self.tensors.extend(&norm.weight);
            self.tensors.extend(&norm.bias);
        }
    }
}
