//! Encoders with norms of the stream after the parts of a layer, as in BERT: their sizes, the names
//! of their tensors, and the blueprint that follows from them.

use crate::blueprint::{
    Activation, Attention, Blueprint, Embedding, Ffn, Gated, Layer, Mixer, Plain, Positions, Projection, Residual,
    Rows, Tensor, TokenTypes,
};
use crate::dense::{attention, layer_norm, projection};
use crate::plain::one_by_one;
use crate::{Rope, TensorNames};

/// Sizes of an encoder, in elements, and the names of its tensors.
pub(crate) struct Encoder {
    pub(crate) vocabulary: u64,
    pub(crate) hidden: u64,
    pub(crate) heads: u64,
    /// Width of the feed-forward networks.
    pub(crate) width: u64,
    pub(crate) layers: usize,
    pub(crate) context: u64,
    pub(crate) epsilon: f64,
    pub(crate) activation: Activation,
    /// `RoPE` of all layers.
    pub(crate) rope: Option<Rope>,
    /// Learned positions: the number of rows, and the row of the first position.
    pub(crate) positions: Option<(u64, u64)>,
    /// Number of token types, if there are any.
    pub(crate) types: u64,
    pub(crate) names: EncoderNames,
}

/// Names of an encoder's tensors.
pub(crate) struct EncoderNames {
    /// Prefix of all names.
    pub(crate) root: String,
    /// Names of the tables of words, positions and types, without `.weight`.
    pub(crate) tables: [&'static str; 3],
    /// Norm of the embedding.
    pub(crate) embedding_norm: &'static str,
    /// Prefix of layers, which ends before the index.
    pub(crate) layers: &'static str,
    pub(crate) attention: AttentionNames,
    /// Norms after attention and after the feed-forward network.
    pub(crate) norms: [&'static str; 2],
    pub(crate) network: NetworkNames,
}

/// Names of the projections of attention in a layer.
#[derive(Clone, Copy)]
pub(crate) enum AttentionNames {
    /// Query, key, value, output.
    Separate([&'static str; 4]),
    /// One tensor with all queries, then all keys, then all values; output.
    Together([&'static str; 2]),
}

/// Names of the projections of the feed-forward network in a layer.
#[derive(Clone, Copy)]
pub(crate) enum NetworkNames {
    /// Up, down.
    Plain([&'static str; 2]),
    /// Gate, up, down.
    Gated([&'static str; 3]),
    /// One tensor with the rows of up, then of the gate; down.
    Together([&'static str; 2]),
}

impl Encoder {
    /// Returns the blueprint.
    pub(crate) fn blueprint(&self, names: &TensorNames) -> Blueprint {
        let EncoderNames { root, tables: [words, positions, types], .. } = &self.names;
        let table = |name: &str| Tensor::named(format!("{root}{name}.weight"));
        let positions = self.positions.map(|(rows, offset)| Positions { weight: table(positions), rows, offset });
        // Texts use at most two types.
        let count = self.types.min(2);
        let types = table(types);
        let has_types = count > 0 && names.has(&types.name);
        Blueprint {
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            context: self.context,
            causal: false,
            embedding: Embedding {
                weight: table(words),
                scale: None,
                positions,
                types: has_types.then(|| TokenTypes { weight: Tensor::rows(types.name, 0, count), count }),
                norm: Some(layer_norm(names, &format!("{root}{}", self.names.embedding_norm), self.epsilon)),
                of_layers: None,
            },
            layers: (0..self.layers).map(|index| self.layer(names, index)).collect(),
            norm: None,
            output: None,
            scorer: None,
        }
    }

    fn layer(&self, names: &TensorNames, index: usize) -> Layer {
        let EncoderNames { root, layers, attention: projections, norms: [after_mixer, after_ffn], network, .. } =
            &self.names;
        let module = |own: &str| format!("{root}{layers}{index}.{own}");
        let own = |name: &str| projection(names, &module(name));
        let head_dim = self.hidden.checked_div(self.heads).unwrap_or(0);
        let projections = match projections {
            AttentionNames::Separate(all) => all.map(own),
            AttentionNames::Together([all, output]) => {
                let [query, key, value] = one_by_one(&own(all), [self.heads, self.heads, head_dim]);
                [query, key, value, own(output)]
            }
        };
        let mixer = Attention { rope: self.rope.clone(), ..attention(self.heads, head_dim, projections) };
        let after = |name: &str| {
            let sum = Some(layer_norm(names, &module(name), self.epsilon));
            Residual { sum, ..Residual::default() }
        };
        Layer {
            mixer: Mixer::Attention(Box::new(mixer)),
            mixer_residual: after(after_mixer),
            ffn: self.network(*network, &own),
            ffn_residual: after(after_ffn),
            parallel: false,
            token_input: None,
            scale: None,
        }
    }

    fn network(&self, network: NetworkNames, own: &dyn Fn(&str) -> Projection) -> Ffn {
        let (width, activation) = (self.width, self.activation);
        let [gate, up, down] = match network {
            NetworkNames::Plain(modules) => {
                let [up, down] = modules.map(own);
                return Ffn::Plain(Box::new(Plain { width, activation, up, down }));
            }
            NetworkNames::Gated(modules) => modules.map(own),
            NetworkNames::Together([both, down]) => {
                let both = own(both);
                [both.rows(Rows::run(width, width)), both.rows(Rows::run(0, width)), own(down)]
            }
        };
        Ffn::Gated(Box::new(Gated { width, activation, gate, up, down }))
    }
}
