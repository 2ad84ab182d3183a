//! `ModernBERT`: an encoder with `RoPE`, windows in most layers, and gated networks.

use crate::Rope;
use crate::blueprint::{Activation, Blueprint, Embedding, Ffn, Gated, Layer, Mixer, Residual, Rows, Tensor};
use crate::config_json::Config;
use crate::dense::{layer_count, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::{attention, layer_norm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "modernbert",
    model_types: &["modernbert"],
    read_config,
    gguf: &GgufForm::not_yet("modern-bert"),
    hugging_face: HuggingFaceForm::of("ModernBertModel", "modernbert"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let root = if names.has("model.embeddings.tok_embeddings.weight") { "model." } else { "" };
    let (hidden, heads) = (config.required("hidden_size")?, config.required("num_attention_heads")?);
    let (head_dim, width) = (hidden.checked_div(heads).unwrap_or(0), config.required("intermediate_size")?);
    let epsilon = config.float("norm_eps")?.unwrap_or(1e-5);
    let activation = config.activation("hidden_activation", Activation::Gelu)?;
    let count = layer_count(config.required("num_hidden_layers")?)?;
    let slides = sliding_layers(config, count as u64)?;
    // The window is wide on both sides together, the position itself not counted.
    let window = config.unsigned("local_attention")?.unwrap_or(128) / 2 + 1;
    let [global, local] =
        [("full_attention", "global_rope_theta", 160_000.0), ("sliding_attention", "local_rope_theta", 10_000.0)].map(
            |(kind, key, default)| -> Result<Rope, Error> {
                let theta = config.float(key)?.unwrap_or(default);
                Ok(config.newer_rope(kind, theta)?.unwrap_or_else(|| Rope::plain(theta)))
            },
        );
    let (global, local) = (global?, local?);
    let norm = |module: &str| layer_norm(names, &format!("{root}{module}"), epsilon);
    let layer = |index: usize| {
        let own = |module: &str| format!("layers.{index}.{module}");
        let projection = |module: &str| projection(names, &format!("{root}{}", own(module)));
        let (qkv, both) = (projection("attn.Wqkv"), projection("mlp.Wi"));
        let part = |which: u64| qkv.rows(Rows::run(hidden.saturating_mul(which), hidden));
        let mut mixer = attention(heads, head_dim, [part(0), part(1), part(2), projection("attn.Wo")]);
        (mixer.rope, mixer.window) =
            if slides[index] { (Some(local.clone()), Some(window)) } else { (Some(global.clone()), None) };
        // The first layer sees what the norm of the embedding gives.
        let first = own("attn_norm");
        let before = names.has(&format!("{root}{first}.weight")).then(|| norm(&first));
        Layer {
            mixer: Mixer::Attention(Box::new(mixer)),
            mixer_residual: Residual { before, ..Residual::default() },
            ffn: Ffn::Gated(Box::new(Gated {
                width,
                activation,
                gate: both.rows(Rows::run(0, width)),
                up: both.rows(Rows::run(width, width)),
                down: projection("mlp.Wo"),
            })),
            ffn_residual: Residual { before: Some(norm(&own("mlp_norm"))), ..Residual::default() },
            parallel: false,
        }
    };
    Ok(Blueprint {
        vocabulary: config.required("vocab_size")?,
        hidden,
        context: config.unsigned("max_position_embeddings")?.unwrap_or(8192),
        causal: false,
        embedding: Embedding {
            weight: Tensor::named(format!("{root}embeddings.tok_embeddings.weight")),
            scale: None,
            positions: None,
            constant: None,
            norm: Some(norm("embeddings.norm")),
        },
        layers: (0..count).map(layer).collect(),
        norm: Some(norm("final_norm")),
        output: None,
    })
}

/// By a list of types, or all but every so many.
fn sliding_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    if let Some(slides) = config.sliding_layers(layers)? {
        return Ok(slides);
    }
    let step = config.step("global_attn_every_n_layers", 3)?;
    Ok((0..layers).map(|layer| !layer.is_multiple_of(step)).collect())
}
