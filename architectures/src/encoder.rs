//! Encoders with norms of the stream after the parts of a layer, as in BERT: their sizes, the names
//! of their tensors, and the blueprint that follows from them.

use crate::blueprint::{
    Activation, Attention, Blueprint, Embedding, Ffn, Gated, Layer, Mixer, Plain, PositionTable, Positions, Projection,
    Residual, Rows, Tensor, TokenTypes,
};
use crate::config_json::Config;
use crate::dense::{attention, layer_count, layer_norm, projection, vocabulary};
use crate::gguf_keys::Keys;
use crate::plain::one_by_one;
use crate::{Error, Rope, TensorNames};

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

/// Default number of token types, as in transformers.
pub(crate) const TYPES: u64 = 2;

/// Values of a class of encoders with `RoPE` for keys that a config or a GGUF file omits.
pub(crate) struct EncoderDefaults {
    pub(crate) context: u64,
    pub(crate) epsilon: f64,
    pub(crate) activation: Activation,
    pub(crate) theta: f64,
    /// Number of token types.
    pub(crate) types: u64,
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
    /// Reads a config of an encoder with `RoPE`, apart from its activation.
    pub(crate) fn from_config(
        config: Config<'_>,
        defaults: &EncoderDefaults,
        names: EncoderNames,
    ) -> Result<Self, Error> {
        let rope = Some(config.rope("full_attention", defaults.theta)?);
        Ok(Self { rope, ..Self::without_rope(config, defaults, names)? })
    }

    /// Reads a config of an encoder with learned positions, with BERT's defaults; `offset` is the
    /// row of the first position, `types` the default number of token types.
    pub(crate) fn with_positions(
        config: Config<'_>,
        offset: u64,
        types: u64,
        names: EncoderNames,
    ) -> Result<Self, Error> {
        const ACTIVATION: Activation = Activation::Gelu;
        let defaults = EncoderDefaults { context: 512, epsilon: 1e-12, activation: ACTIVATION, theta: 10_000.0, types };
        let encoder = Self::without_rope(config, &defaults, names)?;
        let rows = encoder.context;
        Ok(Self {
            context: rows.saturating_sub(offset),
            activation: config.activation("hidden_act", ACTIVATION)?,
            positions: Some((rows, offset)),
            ..encoder
        })
    }

    /// Reads a config apart from its activation and `RoPE`.
    pub(crate) fn without_rope(
        config: Config<'_>,
        defaults: &EncoderDefaults,
        names: EncoderNames,
    ) -> Result<Self, Error> {
        Ok(Self {
            vocabulary: config.required("vocab_size")?,
            hidden: config.required("hidden_size")?,
            heads: config.required("num_attention_heads")?,
            width: config.required("intermediate_size")?,
            layers: layer_count(config.required("num_hidden_layers")?)?,
            context: config.unsigned("max_position_embeddings")?.unwrap_or(defaults.context),
            epsilon: config.float("layer_norm_eps")?.unwrap_or(defaults.epsilon),
            activation: defaults.activation,
            rope: None,
            positions: None,
            types: config.unsigned("type_vocab_size")?.unwrap_or(defaults.types),
            names,
        })
    }

    /// Reads a GGUF file of an encoder with `RoPE`.
    pub(crate) fn from_gguf(keys: Keys<'_>, defaults: &EncoderDefaults, names: EncoderNames) -> Result<Self, Error> {
        Ok(Self {
            vocabulary: vocabulary(keys)?,
            hidden: keys.required("embedding_length")?,
            heads: keys.required("attention.head_count")?,
            width: keys.required("feed_forward_length")?,
            layers: layer_count(keys.required("block_count")?)?,
            context: keys.required("context_length")?,
            epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(defaults.epsilon),
            activation: defaults.activation,
            rope: Some(keys.rope()?),
            positions: None,
            types: token_types(keys),
            names,
        })
    }

    /// Returns the elements of a head.
    pub(crate) fn head_dim(&self) -> u64 {
        self.hidden.checked_div(self.heads).unwrap_or(0)
    }

    /// Returns the blueprint.
    pub(crate) fn blueprint(&self, names: &TensorNames) -> Blueprint {
        let EncoderNames { root, tables: [words, positions, types], .. } = &self.names;
        let table = |name: &str| Tensor::named(format!("{root}{name}.weight"));
        let positions = self.positions.map(|(rows, offset)| Positions {
            table: PositionTable::Learned(table(positions)),
            rows,
            offset,
        });
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
            streams: None,
            layers: (0..self.layers).map(|index| self.layer(names, index)).collect(),
            norm: None,
            embedder: Vec::new(),
            output: None,
            scorer: None,
            pictures: None,
        }
    }

    fn layer(&self, names: &TensorNames, index: usize) -> Layer {
        let EncoderNames { root, layers, attention: projections, norms: [after_mixer, after_ffn], network, .. } =
            &self.names;
        let module = |own: &str| format!("{root}{layers}{index}.{own}");
        let own = |name: &str| projection(names, &module(name));
        let head_dim = self.head_dim();
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
        let mixer = Mixer::Attention(Box::new(mixer));
        Layer::new((mixer, after(after_mixer)), (self.network(*network, &own), after(after_ffn)))
    }

    fn network(&self, network: NetworkNames, own: &dyn Fn(&str) -> Projection) -> Ffn {
        let (width, activation) = (self.width, self.activation);
        let projections = match network {
            NetworkNames::Plain(modules) => {
                let [up, down] = modules.map(own);
                return Ffn::Plain(Box::new(Plain { width, activation, curve: None, up, down }));
            }
            NetworkNames::Gated(modules) => modules.map(own),
            NetworkNames::Together([both, down]) => {
                let both = own(both);
                [both.rows(Rows::run(width, width)), both.rows(Rows::run(0, width)), own(down)]
            }
        };
        Ffn::Gated(Box::new(Gated::new(width, activation, projections)))
    }
}

/// Returns the number of rows of the type table. In a split, it may be in another file than the
/// keys.
pub(crate) fn token_types(keys: Keys<'_>) -> u64 {
    let table = keys.gguf.tensors.iter().find(|tensor| tensor.name == "token_types.weight");
    let rows = table.map(|table| table.dims.get(1).copied().unwrap_or(1));
    rows.or_else(|| keys.gguf.unsigned("tokenizer.ggml.token_type_count")).unwrap_or(TYPES)
}
