//! Dense transformers: parameters that most families fill in, and the blueprint that follows from
//! them.
//!
//! A family reads its special parameters and leaves the rest to [`Dense::from_config`] and
//! [`Dense::from_gguf`].

mod norm_names;
mod parts;
mod windows;

use crate::blueprint::check::MAX_LAYERS;
use crate::blueprint::{
    Activation, Attention, Blueprint, Embedding, Ffn, Gated, HeadLayout, Layer, Mixer, Norm, NormKind, Output,
    Residual, Tensor,
};
use crate::config_json::{self, Config};
use crate::gguf_keys::{self, Keys};
use crate::{Error, Rope, TensorNames};

pub(crate) use norm_names::{ALL_NORMS, NormNames, ONE_NORM, POST_NORMS, PRE_NORMS};
pub(crate) use parts::{attention, clamps, decay_rate, divisors, layer_norm, projection, unweighted_norm};

const EMBEDDING: &str = "embed_tokens.weight";
const OUTPUT: &str = "lm_head";
const ROOT: &str = "model.";
const ATTENTION_MODULES: [&str; 4] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
const NETWORK_MODULES: [&str; 3] = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

/// Parameters of a dense transformer. Sizes are in elements, contexts in tokens.
#[derive(Clone, Debug)]
pub(crate) struct Dense {
    pub(crate) vocabulary: u64,
    pub(crate) hidden: u64,
    pub(crate) intermediate: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    /// Elements of a value head.
    pub(crate) value_dim: u64,
    pub(crate) context: u64,
    /// Context of the first training, if a file has factors for longer contexts.
    pub(crate) original_context: Option<u64>,
    pub(crate) norm_kind: NormKind,
    pub(crate) norm_epsilon: f64,
    pub(crate) norm_offset: f64,
    pub(crate) activation: Activation,
    pub(crate) attention_scale: f64,
    pub(crate) embedding_scale: Option<f64>,
    pub(crate) residual_scale: Option<f64>,
    pub(crate) output_scale: Option<f64>,
    pub(crate) layout: HeadLayout,
    pub(crate) layers: Vec<DenseLayer>,
    pub(crate) norms: NormNames,
    /// Whether attention and feed-forward network read the same stream, and their outputs are added
    /// together.
    pub(crate) parallel: bool,
    /// Whether query and key heads have norms.
    pub(crate) head_norms: bool,
    /// Prefix of the names of the decoder's tensors.
    pub(crate) root: &'static str,
    /// Name of the list of layers, below the root.
    pub(crate) layer_list: &'static str,
    /// Names of the projections of attention in a layer: query, key, value, output.
    pub(crate) attention_modules: [&'static str; 4],
    /// Names of the norms of query and key heads in a layer.
    pub(crate) head_norm_modules: [&'static str; 2],
    /// Names of the projections of the feed-forward network in a layer: gate, up, down.
    pub(crate) network_modules: [&'static str; 3],
    /// Name of the norm before the output, below the root.
    pub(crate) final_norm: &'static str,
    /// Name of the embedding, below the root.
    pub(crate) embedding: &'static str,
    /// Name of the output projection.
    pub(crate) output: &'static str,
}

/// Parameters that differ between layers.
#[derive(Clone, Debug)]
pub(crate) struct DenseLayer {
    pub(crate) rope: Option<Rope>,
    /// Whether the model's divisors of frequencies apply to the layer.
    pub(crate) divided: bool,
    pub(crate) window: Option<u64>,
}

/// Values that a class of transformers uses for keys that a config omits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    /// Number of key and value heads; `None`: equal to the number of query heads.
    pub(crate) kv_heads: Option<u64>,
    /// Elements of a head; `None`: the width divided by the number of heads.
    pub(crate) head_dim: Option<u64>,
    pub(crate) context: u64,
    pub(crate) theta: f64,
}

/// Defaults of Llama, on which the defaults of other families are based.
pub(crate) const LLAMA: Defaults = Defaults { kv_heads: None, head_dim: None, context: 2048, theta: 10_000.0 };

/// Returns the number of layers, checked before anything is allocated for each of them.
pub(crate) fn layer_count(layers: u64) -> Result<usize, Error> {
    if layers == 0 || layers > MAX_LAYERS { Err(config_json::fail(too_many(layers))) } else { Ok(layers as usize) }
}

fn too_many(layers: u64) -> String {
    format!("number of layers is {layers}, expected 1 to {MAX_LAYERS}")
}

/// Creates the layers, after checking their number.
fn some_layers(layers: u64, rope: &Rope, fail: fn(String) -> Error) -> Result<Vec<DenseLayer>, Error> {
    if layers == 0 || layers > MAX_LAYERS {
        return Err(fail(too_many(layers)));
    }
    Ok(vec![DenseLayer { rope: Some(rope.clone()), divided: true, window: None }; layers as usize])
}

/// Returns `layer_types` of a config.
pub(crate) fn layer_types(blueprint: &Blueprint) -> Vec<&'static str> {
    let kind = |window: Option<u64>| if window.is_some() { "sliding_attention" } else { "full_attention" };
    blueprint.attentions().map(|attention| kind(attention.window)).collect()
}

impl Dense {
    /// Reads parameters of `config.json` that all such models share. Defaults: `SiLU`, scores
    /// scaled by the root of the head size, `RoPE` on every layer, no windows, norms before the
    /// parts of a layer.
    pub(crate) fn from_config(config: Config<'_>, defaults: Defaults) -> Result<Self, Error> {
        Self::from_config_with(config, defaults, config.required("num_hidden_layers")?)
    }

    /// Reads the same parameters for a config that has another key for the number of layers.
    pub(crate) fn from_config_with(config: Config<'_>, defaults: Defaults, layers: u64) -> Result<Self, Error> {
        let activation = config.activation("hidden_act", Activation::Silu)?;
        Ok(Self { activation, ..Self::without_activation(config, defaults, layers)? })
    }

    /// Reads the same parameters, except for the activation.
    pub(crate) fn without_activation(config: Config<'_>, defaults: Defaults, layers: u64) -> Result<Self, Error> {
        let heads = config.required("num_attention_heads")?;
        let hidden = config.required("hidden_size")?;
        // `null` means the width divided by the number of heads, even if the class uses another
        // value for a missing key.
        let default = defaults.head_dim.filter(|_| !config.is_null("head_dim"));
        let by_width = || hidden.checked_div(heads).unwrap_or(0);
        let head_dim = config.unsigned("head_dim")?.or(default).unwrap_or_else(by_width);
        let kv_heads = defaults.kv_heads.filter(|_| !config.is_null("num_key_value_heads"));
        let rope = config.rope("full_attention", defaults.theta)?;
        let rope = Rope { dimension: config.rotated(head_dim)?, ..rope };
        Ok(Self {
            vocabulary: config.required("vocab_size")?,
            hidden,
            intermediate: config.unsigned("intermediate_size")?.unwrap_or(0),
            heads,
            kv_heads: config.unsigned("num_key_value_heads")?.or(kv_heads).unwrap_or(heads),
            head_dim,
            value_dim: head_dim,
            context: config.unsigned("max_position_embeddings")?.unwrap_or(defaults.context),
            original_context: None,
            norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-6),
            norm_kind: NormKind::Rms,
            norm_offset: 0.0,
            activation: Activation::Silu,
            attention_scale: (head_dim as f64).powf(-0.5),
            embedding_scale: None,
            residual_scale: None,
            output_scale: None,
            layout: HeadLayout::Half,
            layers: some_layers(layers, &rope, config_json::fail)?,
            norms: PRE_NORMS,
            parallel: false,
            head_norms: false,
            root: ROOT,
            layer_list: "layers",
            attention_modules: ATTENTION_MODULES,
            head_norm_modules: ["self_attn.q_norm", "self_attn.k_norm"],
            network_modules: NETWORK_MODULES,
            final_norm: "norm",
            embedding: EMBEDDING,
            output: OUTPUT,
        })
    }

    /// Reads the GGUF metadata that all such models share. A window in the file applies to all
    /// layers, unless there is a pattern.
    pub(crate) fn from_gguf(keys: Keys<'_>) -> Result<Self, Error> {
        for key in ["attention.head_count", "attention.head_count_kv", "feed_forward_length"] {
            keys.same_in_layers(key)?;
        }
        if keys.flag("attention.causal")? == Some(false) {
            return Err(gguf_keys::fail("attention that sees later tokens cannot be run yet"));
        }
        Self::from_any_gguf(keys)
    }

    /// Reads the same metadata of a model whose layers may differ in their heads and widths, and
    /// whose tokens may attend to later ones.
    pub(crate) fn from_any_gguf(keys: Keys<'_>) -> Result<Self, Error> {
        let heads = keys.first_in_layers("attention.head_count")?;
        let heads = heads.ok_or_else(|| gguf_keys::fail("`attention.head_count` is missing"))?;
        let hidden = keys.required("embedding_length")?;
        let head_dim = match keys.unsigned("attention.key_length")? {
            Some(size) => size,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        let dimension = keys.unsigned("rope.dimension_count")?.filter(|rotated| *rotated != head_dim);
        let rope = Rope { dimension, ..keys.rope()? };
        // 0 means that there is no scale.
        let scale = keys.float("attention.scale")?.filter(|scale| *scale != 0.0);
        let mut dense = Self {
            vocabulary: vocabulary(keys)?,
            hidden,
            // Models in which all layers have experts may lack it.
            intermediate: keys.first_in_layers("feed_forward_length")?.unwrap_or(0),
            heads,
            kv_heads: keys.first_in_layers("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            value_dim: keys.unsigned("attention.value_length")?.unwrap_or(head_dim),
            context: keys.required("context_length")?,
            original_context: Some(keys.original_context()?),
            norm_epsilon: keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            norm_kind: NormKind::Rms,
            norm_offset: 0.0,
            activation: Activation::Silu,
            attention_scale: scale.unwrap_or_else(|| (head_dim as f64).powf(-0.5)),
            embedding_scale: None,
            residual_scale: None,
            output_scale: None,
            // The blueprint uses a separate output projection if the file has one.
            layout: HeadLayout::Half,
            layers: some_layers(decoder_layers(keys)?, &rope, gguf_keys::fail)?,
            norms: PRE_NORMS,
            parallel: false,
            head_norms: false,
            root: ROOT,
            layer_list: "layers",
            attention_modules: ATTENTION_MODULES,
            head_norm_modules: ["self_attn.q_norm", "self_attn.k_norm"],
            network_modules: NETWORK_MODULES,
            final_norm: "norm",
            embedding: EMBEDDING,
            output: OUTPUT,
        };
        if let Some(window) = keys.unsigned("attention.sliding_window")?.filter(|window| *window > 0) {
            let layers = dense.layers.len();
            let slides = keys.sliding_layers(layers as u64)?.unwrap_or_else(|| vec![true; layers]);
            dense.slide(&slides, window);
        }
        Ok(dense)
    }

    /// Sets the width of the feed-forward networks to four times that of the stream, if the config
    /// omits it, as GPT-2 does.
    pub(crate) fn widen_by_four(&mut self) {
        if self.intermediate == 0 {
            self.intermediate = self.hidden.saturating_mul(4);
        }
    }

    /// Applies `RoPE` to one of `parts` parts of each head, unless the config states the share.
    pub(crate) fn rotate_part(&mut self, config: Config<'_>, parts: u64) -> Result<(), Error> {
        if !config.says_rotated()? {
            let part = self.head_dim / parts;
            for rope in self.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
                rope.dimension = Some(part);
            }
        }
        Ok(())
    }

    /// Returns the blueprint with the tensors that exist: a bias is included if the model has one.
    pub(crate) fn blueprint(self, names: &TensorNames) -> Blueprint {
        // Embedding models are stored without the names around the decoder.
        let bare = names.has(self.embedding) && !names.has(&format!("{}{}", self.root, self.embedding));
        let root = if bare { "" } else { self.root };
        let embedding = format!("{root}{}", self.embedding);
        // A separate output projection is used, even if the config states that it is tied to the
        // embedding.
        let own = names.has(&format!("{}.weight", self.output));
        let mut output = projection(names, self.output);
        if !own {
            output.weight = Tensor::named(&embedding);
        }
        Blueprint {
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            context: self.context,
            causal: true,
            embedding: Embedding {
                weight: Tensor::named(embedding),
                scale: self.embedding_scale,
                positions: None,
                types: None,
                norm: None,
                of_layers: None,
            },
            streams: None,
            layers: self.layers.iter().enumerate().map(|(index, own)| self.layer(names, root, index, own)).collect(),
            norm: Some(self.norm(names, &format!("{root}{}", self.final_norm))),
            embedder: Vec::new(),
            output: Some(Output { scale: self.output_scale, ..Output::of(output) }),
            scorer: None,
            pictures: None,
        }
    }

    /// Returns a norm with the model's parameters.
    pub(crate) fn norm(&self, names: &TensorNames, module: &str) -> Norm {
        let (kind, offset) = (self.norm_kind, self.norm_offset);
        Norm { kind, offset, ..layer_norm(names, module, self.norm_epsilon) }
    }

    fn layer(&self, names: &TensorNames, root: &str, index: usize, layer: &DenseLayer) -> Layer {
        let prefix = format!("{root}{}.{index}", self.layer_list);
        let projection = |module: &str| projection(names, &format!("{prefix}.{module}"));
        let norm = |module: &str| self.norm(names, &format!("{prefix}.{module}"));
        let [query_norm, key_norm] = self.head_norm_modules.map(|module| self.head_norms.then(|| norm(module)));
        let residual = |before: Option<&str>, after: Option<&str>| Residual {
            before: before.map(norm),
            after: after.map(norm),
            scale: self.residual_scale,
            sum: None,
        };
        let attention = Attention {
            kv_heads: self.kv_heads,
            value_dim: self.value_dim,
            layout: self.layout,
            scale: self.attention_scale,
            window: layer.window,
            rope: layer.rope.as_ref().map(|rope| {
                let divisors = layer.divided.then(|| divisors(names, self.original_context)).flatten();
                Rope { divisors, ..rope.clone() }
            }),
            query_norm,
            key_norm,
            ..attention(self.heads, self.head_dim, self.attention_modules.map(projection))
        };
        let gated = Gated::new(self.intermediate, self.activation, self.network_modules.map(projection));
        let mixer_residual = residual(self.norms.before_mixer, self.norms.after_mixer);
        let ffn_residual = residual(self.norms.before_ffn, self.norms.after_ffn);
        let mixer = Mixer::Attention(Box::new(attention));
        Layer {
            parallel: self.parallel,
            ..Layer::new((mixer, mixer_residual), (Ffn::Gated(Box::new(gated)), ffn_residual))
        }
    }
}

/// Returns the number of decoder layers. The file's count includes layers for multi-token
/// prediction at the end.
fn decoder_layers(keys: Keys<'_>) -> Result<u64, Error> {
    let guessing = keys.unsigned("nextn_predict_layers")?.unwrap_or(0);
    Ok(keys.required("block_count")?.saturating_sub(guessing))
}

/// Returns the number of rows of the embedding. In a split, the embedding may be in another file
/// than the keys.
pub(crate) fn vocabulary(keys: Keys<'_>) -> Result<u64, Error> {
    let embedding = keys.gguf.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    if let Some(rows) = embedding.and_then(|tensor| tensor.dims.get(1).copied()) {
        return Ok(rows);
    }
    let tokens = keys.gguf.array("tokenizer.ggml.tokens").map(|tokens| tokens.len());
    let found = keys.unsigned("vocab_size")?.or(tokens);
    found.ok_or_else(|| gguf_keys::fail("there is neither a `token_embd.weight` nor a vocabulary"))
}
