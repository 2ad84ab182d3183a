//! `ModernBERT`: an encoder with `RoPE`, windows in most layers, and gated networks.

use crate::Rope;
use crate::blueprint::{Activation, Blueprint, Embedding, Ffn, Gated, Layer, Mixer, Residual, Rows, Tensor};
use crate::config_json::Config;
use crate::dense::{attention, layer_count, layer_norm, projection, vocabulary};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "modernbert",
    model_types: &["modernbert"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("attn_norm", "attn_norm"),
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.Wo"),
            ("ffn_norm", "mlp_norm"),
            ("ffn_up", "mlp.Wi"),
            ("ffn_down", "mlp.Wo"),
        ],
        model_names: &[
            ("token_embd.weight", "model.embeddings.tok_embeddings.weight"),
            ("token_embd_norm.weight", "model.embeddings.norm.weight"),
            ("output_norm.weight", "model.final_norm.weight"),
        ],
        ..GgufForm::not_yet("modern-bert")
    },
    hugging_face: HuggingFaceForm::of("ModernBertModel", "modernbert"),
};

/// The first of every three layers has full attention.
const PATTERN: u64 = 3;
pub(super) const WINDOW: u64 = 128;
/// Base of the frequencies of sliding layers.
const SLIDING_THETA: f64 = 10_000.0;

/// Parameters of the encoder. Sizes are in elements.
struct ModernBertSizes {
    vocabulary: u64,
    hidden: u64,
    heads: u64,
    width: u64,
    context: u64,
    epsilon: f64,
    activation: Activation,
    /// For each layer whether it slides, and the window: the number of positions on both sides
    /// together, without the token's own.
    slides: Vec<bool>,
    window: u64,
    /// `RoPE` of layers with full attention, and of sliding layers.
    ropes: [Rope; 2],
}

pub(super) fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let rope = |kind: &str, key: &str, default: f64| -> Result<Rope, Error> {
        let theta = config.float(key)?.unwrap_or(default);
        Ok(config.newer_rope(kind, theta)?.unwrap_or_else(|| Rope::plain(theta)))
    };
    let count = layer_count(config.required("num_hidden_layers")?)?;
    let sizes = ModernBertSizes {
        vocabulary: config.required("vocab_size")?,
        hidden: config.required("hidden_size")?,
        heads: config.required("num_attention_heads")?,
        width: config.required("intermediate_size")?,
        context: config.unsigned("max_position_embeddings")?.unwrap_or(8192),
        epsilon: config.float("norm_eps")?.unwrap_or(1e-5),
        activation: config.activation("hidden_activation", Activation::Gelu)?,
        slides: sliding_layers(config, count as u64)?,
        window: config.unsigned("local_attention")?.unwrap_or(WINDOW),
        ropes: [
            rope("full_attention", "global_rope_theta", 160_000.0)?,
            rope("sliding_attention", "local_rope_theta", SLIDING_THETA)?,
        ],
    };
    let root = if names.has("model.embeddings.tok_embeddings.weight") { "model." } else { "" };
    Ok(blueprint(names, root, &sizes))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let count = layer_count(keys.required("block_count")?)?;
    let activation = match keys.text("hidden_activation")? {
        None => Activation::Gelu,
        Some(name) => Activation::parse(name)
            .ok_or_else(|| gguf_keys::fail(format!("activation `{name}` is not supported, expected gelu or silu")))?,
    };
    let full = keys.rope()?;
    let theta = keys.float("rope.freq_base_swa")?.unwrap_or(SLIDING_THETA);
    let sizes = ModernBertSizes {
        vocabulary: vocabulary(keys)?,
        hidden: keys.required("embedding_length")?,
        heads: keys.required("attention.head_count")?,
        width: keys.required("feed_forward_length")?,
        context: keys.required("context_length")?,
        epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        activation,
        // A number `n` means that the first of every `n` layers has full attention.
        slides: match keys.unsigned_or_list("attention.sliding_window_pattern")? {
            Some(step) => every_first_sees_all(step.max(1), count as u64),
            None => match keys.sliding_layers(count as u64)? {
                Some(slides) => slides,
                None => every_first_sees_all(PATTERN, count as u64),
            },
        },
        window: keys.unsigned("attention.sliding_window")?.unwrap_or(WINDOW),
        ropes: [full, Rope::plain(theta)],
    };
    Ok(blueprint(names, "model.", &sizes))
}

fn blueprint(names: &TensorNames, root: &str, sizes: &ModernBertSizes) -> Blueprint {
    let ModernBertSizes { hidden, heads, width, activation, .. } = *sizes;
    let head_dim = hidden.checked_div(heads).unwrap_or(0);
    let norm = |module: &str| layer_norm(names, &format!("{root}{module}"), sizes.epsilon);
    let layer = |index: usize| {
        let own = |module: &str| format!("layers.{index}.{module}");
        let projection = |module: &str| projection(names, &format!("{root}{}", own(module)));
        let (qkv, both) = (projection("attn.Wqkv"), projection("mlp.Wi"));
        let part = |which: u64| qkv.rows(Rows::run(hidden.saturating_mul(which), hidden));
        let [gate, up] = [0, width].map(|first| both.rows(Rows::run(first, width)));
        let mut mixer = attention(heads, head_dim, [part(0), part(1), part(2), projection("attn.Wo")]);
        let slides = sizes.slides[index];
        mixer.rope = Some(sizes.ropes[usize::from(slides)].clone());
        // On each side, including the token's own position.
        mixer.window = slides.then_some(sizes.window / 2 + 1);
        // The first layer has no norm, because it reads the output of the embedding's norm.
        let first = own("attn_norm");
        let before = names.has(&format!("{root}{first}.weight")).then(|| norm(&first));
        Layer::new(
            (Mixer::Attention(Box::new(mixer)), Residual { before, ..Residual::default() }),
            (
                Ffn::Gated(Box::new(Gated::new(width, activation, [gate, up, projection("mlp.Wo")]))),
                Residual { before: Some(norm(&own("mlp_norm"))), ..Residual::default() },
            ),
        )
    };
    Blueprint {
        vocabulary: sizes.vocabulary,
        hidden,
        context: sizes.context,
        causal: false,
        embedding: Embedding {
            weight: Tensor::named(format!("{root}embeddings.tok_embeddings.weight")),
            scale: None,
            positions: None,
            types: None,
            norm: Some(norm("embeddings.norm")),
            of_layers: None,
        },
        streams: None,
        layers: (0..sizes.slides.len()).map(layer).collect(),
        norm: Some(norm("final_norm")),
        embedder: Vec::new(),
        output: None,
        scorer: None,
        pictures: None,
    }
}

/// Returns for each layer whether it slides: by a list of types, or by a step.
fn sliding_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    if let Some(slides) = config.sliding_layers(layers)? {
        return Ok(slides);
    }
    Ok(every_first_sees_all(config.step("global_attn_every_n_layers", PATTERN)?, layers))
}

fn every_first_sees_all(step: u64, layers: u64) -> Vec<bool> {
    (0..layers).map(|layer| !layer.is_multiple_of(step)).collect()
}
