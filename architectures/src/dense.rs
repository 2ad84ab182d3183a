//! Dense transformers: the numbers that most families fill in, and the blueprint that they make.
//!
//! A family reads what is its own and leaves the rest to [`Dense::from_config`] and [`Dense::from_gguf`].

use crate::blueprint::check::MAX_LAYERS;
use crate::blueprint::{
    Activation, Attention, Blueprint, Embedding, Ffn, Gated, HeadLayout, Layer, Mixer, Norm, NormKind, Output,
    Projection, Residual, Tensor,
};
use crate::config_json::{self, Config};
use crate::gguf_keys::{self, Keys};
use crate::plain::{attention, layer_norm};
use crate::rope::Divisors;
use crate::{Error, Rope, TensorNames};

const EMBEDDING: &str = "embed_tokens.weight";
const OUTPUT: &str = "lm_head";

/// The numbers of a dense transformer. Sizes are in elements, contexts in tokens.
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
    /// The context of the first training, where a file has factors for contexts beyond it.
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
    /// Attention and feed-forward network see the same stream; what they give is added together.
    pub(crate) parallel: bool,
    /// Query and key heads are normed.
    pub(crate) head_norms: bool,
    /// What the norm before the output is called below `model.`.
    pub(crate) final_norm: &'static str,
    /// What the embedding is called below `model.`.
    pub(crate) embedding: &'static str,
    /// What the output projection is called.
    pub(crate) output: &'static str,
}

/// In what layers differ.
#[derive(Clone, Debug)]
pub(crate) struct DenseLayer {
    pub(crate) rope: Option<Rope>,
    /// The model's divisors of frequencies hold for it.
    pub(crate) divided: bool,
    pub(crate) window: Option<u64>,
}

/// What the norms of a layer are called below `model.layers.N.`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormNames {
    pub(crate) before_mixer: Option<&'static str>,
    pub(crate) after_mixer: Option<&'static str>,
    pub(crate) before_ffn: Option<&'static str>,
    pub(crate) after_ffn: Option<&'static str>,
}

/// Norms before attention and before the feed-forward network.
pub(crate) const PRE_NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("post_attention_layernorm"),
    after_ffn: None,
};

/// Norms after attention and after the feed-forward network only.
pub(crate) const POST_NORMS: NormNames = NormNames {
    before_mixer: None,
    after_mixer: Some("post_attention_layernorm"),
    before_ffn: None,
    after_ffn: Some("post_feedforward_layernorm"),
};

/// Norms before and after both.
pub(crate) const ALL_NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: Some("post_attention_layernorm"),
    before_ffn: Some("pre_feedforward_layernorm"),
    after_ffn: Some("post_feedforward_layernorm"),
};

/// One norm before attention and the feed-forward network, which both see the stream as it comes.
pub(crate) const ONE_NORM: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("input_layernorm"),
    after_ffn: None,
};

/// What a class of transformers takes for keys that a config leaves out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    /// Key and value heads; `None`: as many as query heads.
    pub(crate) kv_heads: Option<u64>,
    /// Elements of a head; `None`: the width by the heads.
    pub(crate) head_dim: Option<u64>,
    pub(crate) context: u64,
    pub(crate) theta: f64,
}

/// Those of Llama, from which others differ.
pub(crate) const LLAMA: Defaults = Defaults { kv_heads: None, head_dim: None, context: 2048, theta: 10_000.0 };

/// Which layers are of a kind where every `step`-th is not.
pub(crate) fn all_but_every(step: u64, layers: u64) -> Vec<bool> {
    (1..=layers.min(MAX_LAYERS)).map(|layer| !layer.is_multiple_of(step)).collect()
}

/// A share of a size, rounded down as Python's `int` does it; 0 for what is negative or no number.
#[expect(clippy::cast_sign_loss, reason = "it is not negative")]
pub(crate) fn share(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).max(0.0) as u64
}

/// A number of layers, checked before anything is made for each of them.
pub(crate) fn layer_count(layers: u64) -> Result<usize, Error> {
    if layers == 0 || layers > MAX_LAYERS { Err(config_json::fail(too_many(layers))) } else { Ok(layers as usize) }
}

fn too_many(layers: u64) -> String {
    format!("number of layers is {layers}, expected 1 to {MAX_LAYERS}")
}

/// Refuses a number of layers before anything is made for each of them.
fn some_layers(layers: u64, rope: &Rope, fail: fn(String) -> Error) -> Result<Vec<DenseLayer>, Error> {
    if layers == 0 || layers > MAX_LAYERS {
        return Err(fail(too_many(layers)));
    }
    Ok(vec![DenseLayer { rope: Some(rope.clone()), divided: true, window: None }; layers as usize])
}

/// `layer_types` of a config.
pub(crate) fn layer_types(blueprint: &Blueprint) -> Vec<&'static str> {
    let kind = |window: Option<u64>| if window.is_some() { "sliding_attention" } else { "full_attention" };
    blueprint.attentions().map(|attention| kind(attention.window)).collect()
}

impl Dense {
    /// What `config.json` says of any such model: silu, scores scaled by the root of the head size, `RoPE` on every layer,
    /// no windows, norms before the parts of a layer.
    pub(crate) fn from_config(config: Config<'_>, defaults: Defaults) -> Result<Self, Error> {
        if config.flag("use_bidirectional_attention")?.unwrap_or(false) {
            return Err(config_json::fail("`use_bidirectional_attention` is set, which cannot be run yet"));
        }
        let heads = config.required("num_attention_heads")?;
        let hidden = config.required("hidden_size")?;
        // `null` means the width by the heads, whatever the class takes where the key is missing.
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
            activation: config.activation("hidden_act", Activation::Silu)?,
            attention_scale: (head_dim as f64).powf(-0.5),
            embedding_scale: None,
            residual_scale: None,
            output_scale: None,
            layout: HeadLayout::Half,
            layers: some_layers(config.required("num_hidden_layers")?, &rope, config_json::fail)?,
            norms: PRE_NORMS,
            parallel: false,
            head_norms: false,
            final_norm: "norm",
            embedding: EMBEDDING,
            output: OUTPUT,
        })
    }

    /// What GGUF metadata say of any such model. A window that stands there holds for all layers, unless there is a pattern.
    pub(crate) fn from_gguf(keys: Keys<'_>) -> Result<Self, Error> {
        let heads = keys.required("attention.head_count")?;
        let hidden = keys.required("embedding_length")?;
        let width = keys.same_in_layers("feed_forward_length")?;
        let head_dim = match keys.unsigned("attention.key_length")? {
            Some(size) => size,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        let dimension = keys.unsigned("rope.dimension_count")?.filter(|rotated| *rotated != head_dim);
        if keys.flag("attention.causal")? == Some(false) {
            return Err(gguf_keys::fail("attention that sees later tokens cannot be run yet"));
        }
        let rope = Rope { dimension, ..keys.rope()? };
        // 0 means that there is none.
        let scale = keys.float("attention.scale")?.filter(|scale| *scale != 0.0);
        let mut dense = Self {
            vocabulary: vocabulary(keys)?,
            hidden,
            intermediate: width.ok_or_else(|| gguf_keys::fail("`feed_forward_length` is missing"))?,
            heads,
            kv_heads: keys.same_in_layers("attention.head_count_kv")?.unwrap_or(heads),
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
            // Another output projection that is there is used.
            layout: HeadLayout::Half,
            layers: some_layers(decoder_layers(keys)?, &rope, gguf_keys::fail)?,
            norms: PRE_NORMS,
            parallel: false,
            head_norms: false,
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

    /// Sets the windows of the layers that slide.
    pub(crate) fn slide(&mut self, slides: &[bool], window: u64) {
        for (layer, slides) in self.layers.iter_mut().zip(slides) {
            layer.window = slides.then_some(window);
        }
    }

    /// Sets the window that all layers have where a config has one.
    pub(crate) fn slide_all(&mut self, config: Config<'_>, default: Option<u64>) -> Result<(), Error> {
        let default = default.filter(|_| !config.is_null("sliding_window"));
        match config.unsigned("sliding_window")?.or(default) {
            Some(0) => Err(config_json::fail("`sliding_window` is 0, expected a number of tokens or null")),
            Some(window) => {
                self.slide(&vec![true; self.layers.len()], window);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Sets the window of the layers that a config lists as sliding; where there is no list, of all but every `step`-th.
    pub(crate) fn slide_by_config(&mut self, config: Config<'_>, step: u64, default: u64) -> Result<(), Error> {
        let layers = self.layers.len() as u64;
        let slides = config.sliding_layers(layers)?.unwrap_or_else(|| all_but_every(step, layers));
        self.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(default));
        Ok(())
    }

    /// Sets the window of the layers that a file's keys say; where they do not, of all but every `step`-th. 0 is none.
    pub(crate) fn slide_by_keys(&mut self, keys: Keys<'_>, step: u64, default: u64) -> Result<(), Error> {
        let layers = self.layers.len();
        let slides = keys.sliding_layers(layers as u64)?.unwrap_or_else(|| all_but_every(step, layers as u64));
        match keys.unsigned("attention.sliding_window")?.unwrap_or(default) {
            0 => self.slide(&vec![false; layers], 0),
            window => self.slide(&slides, window),
        }
        Ok(())
    }

    /// Rotates one of so many parts of each head, where the config does not say how much.
    pub(crate) fn rotate_part(&mut self, config: Config<'_>, parts: u64) -> Result<(), Error> {
        if !config.says_rotated()? {
            let part = self.head_dim / parts;
            for rope in self.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
                rope.dimension = Some(part);
            }
        }
        Ok(())
    }

    /// The blueprint with the tensors that there are: biases count where a model has them.
    pub(crate) fn blueprint(self, names: &TensorNames) -> Blueprint {
        // Models that only embed are stored without what is around the decoder.
        let bare = names.has(self.embedding) && !names.has(&format!("model.{}", self.embedding));
        let root = if bare { "" } else { "model." };
        let embedding = format!("{root}{}", self.embedding);
        // The model's own output projection is used, also where the config says that it is tied to the embedding.
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
            },
            layers: self.layers.iter().enumerate().map(|(index, own)| self.layer(names, root, index, own)).collect(),
            norm: Some(self.norm(names, &format!("{root}{}", self.final_norm))),
            output: Some(Output { projection: output, scale: self.output_scale, soft_cap: None }),
            scorer: None,
        }
    }

    /// A norm with the numbers of the model.
    pub(crate) fn norm(&self, names: &TensorNames, module: &str) -> Norm {
        let (kind, offset) = (self.norm_kind, self.norm_offset);
        Norm { kind, offset, ..layer_norm(names, module, self.norm_epsilon) }
    }

    fn layer(&self, names: &TensorNames, root: &str, index: usize, layer: &DenseLayer) -> Layer {
        let prefix = format!("{root}layers.{index}");
        let projection = |module: &str| projection(names, &format!("{prefix}.{module}"));
        let norm = |module: &str| self.norm(names, &format!("{prefix}.{module}"));
        let head_norm = |module: &str| self.head_norms.then(|| norm(module));
        let residual = |before: Option<&str>, after: Option<&str>| Residual {
            before: before.map(norm),
            after: after.map(norm),
            scale: self.residual_scale,
            sum: None,
        };
        let parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"].map(projection);
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
            query_norm: head_norm("self_attn.q_norm"),
            key_norm: head_norm("self_attn.k_norm"),
            ..attention(self.heads, self.head_dim, parts)
        };
        let gated = Gated {
            width: self.intermediate,
            activation: self.activation,
            gate: projection("mlp.gate_proj"),
            up: projection("mlp.up_proj"),
            down: projection("mlp.down_proj"),
        };
        Layer {
            mixer: Mixer::Attention(Box::new(attention)),
            mixer_residual: residual(self.norms.before_mixer, self.norms.after_mixer),
            ffn: Ffn::Gated(Box::new(gated)),
            ffn_residual: residual(self.norms.before_ffn, self.norms.after_ffn),
            parallel: self.parallel,
        }
    }
}

/// The divisors of frequencies that a file has, Llama 3's before those that go by the context.
pub(crate) fn divisors(names: &TensorNames, original_context: Option<u64>) -> Option<Divisors> {
    const SAME: &str = "model.rope_freqs.weight";
    const BY_CONTEXT: [&str; 2] = ["model.rope_factors_short.weight", "model.rope_factors_long.weight"];
    if names.has(SAME) {
        return Some(Divisors::Same(Tensor::named(SAME)));
    }
    let [short, long] = BY_CONTEXT.map(Tensor::named);
    let original_context = original_context.filter(|_| BY_CONTEXT.iter().all(|name| names.has(name)))?;
    Some(Divisors::ByContext { short, long, original_context })
}

/// A projection, with a bias where there is one.
pub(crate) fn projection(names: &TensorNames, module: &str) -> Projection {
    let bias = format!("{module}.bias");
    Projection {
        module: module.to_owned(),
        weight: Tensor::named(format!("{module}.weight")),
        bias: names.has(&bias).then(|| Tensor::named(bias)),
    }
}

/// Layers of the decoder. Layers behind them, which guess further tokens, count in the file.
fn decoder_layers(keys: Keys<'_>) -> Result<u64, Error> {
    let guessing = keys.unsigned("nextn_predict_layers")?.unwrap_or(0);
    Ok(keys.required("block_count")?.saturating_sub(guessing))
}

/// Rows of the embedding; of a split they may be in another file than the keys.
pub(crate) fn vocabulary(keys: Keys<'_>) -> Result<u64, Error> {
    let embedding = keys.gguf.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    if let Some(rows) = embedding.and_then(|tensor| tensor.dims.get(1).copied()) {
        return Ok(rows);
    }
    let tokens = keys.gguf.array("tokenizer.ggml.tokens").map(|tokens| tokens.len());
    let found = keys.unsigned("vocab_size")?.or(tokens);
    found.ok_or_else(|| gguf_keys::fail("there is neither a `token_embd.weight` nor a vocabulary"))
}
