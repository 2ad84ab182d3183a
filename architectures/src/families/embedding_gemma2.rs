//! `EmbeddingGemma` 2: layers of Gemma 4 that see both sides, embeddings of layers without a table,
//! and a projection to the elements of an embedding.

use super::gemma4::{self, Gemma4Parts, PATTERN, SLIDING_THETA, THETA, WINDOW, rms_norm};
use crate::blueprint::{Activation, Blueprint, EmbedderLayer, LayerEmbeddings, TokenInput};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, Rope, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "embedding_gemma2",
    model_types: &["embedding_gemma2_text"],
    read_config,
    gguf: &GgufForm::not_yet("gemma-embedding2"),
    hugging_face: HuggingFaceForm::of("EmbeddingGemma2TextModel", "embedding_gemma2_text"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(256), context: 262_144, theta: THETA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense {
        activation: config.activation("hidden_activation", Activation::GeluTanh)?,
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.slide_by_config(config, config.step("sliding_window_pattern", PATTERN)?, WINDOW)?;
    // The window is the distance on each side.
    for layer in &mut dense.layers {
        layer.window = layer.window.map(|radius| radius.saturating_add(1));
    }
    if let Some(last) = dense.layers.last_mut() {
        // The class gives full attention to the last layer.
        last.window = None;
    }
    let rope = |kind: &str, theta: f64| -> Result<Rope, Error> {
        Ok(config.newer_rope(kind, theta)?.unwrap_or_else(|| Rope::plain(theta)))
    };
    dense.set_ropes(&rope("full_attention", THETA)?, &rope("sliding_attention", SLIDING_THETA)?);
    let (hidden, epsilon, activation) = (dense.hidden, dense.norm_epsilon, dense.activation);
    let parts = Gemma4Parts {
        heads: gemma4::heads(config, &dense, |count| Ok(Some(count.unwrap_or(1))))?,
        shared: 0,
        widths: vec![dense.intermediate; dense.layers.len()],
        embeddings: None,
        experts: None,
        soft_cap: None,
    };
    // The text part alone is stored without the names around it.
    let root = if names.has("embed_tokens.weight") { "" } else { "model." };
    let mut blueprint = gemma4::build(dense, names, root, &parts)?;
    (blueprint.causal, blueprint.output) = (false, None);
    blueprint.embedding.of_layers = Some(LayerEmbeddings {
        width: config.unsigned("hidden_size_per_layer_input")?.unwrap_or(512),
        table: None,
        projection: projection(names, &format!("{root}ple.per_layer_model_projection")),
        projection_scale: (hidden as f64).powf(-0.5),
        norm: rms_norm(names, &format!("{root}ple.per_layer_projection_norm"), epsilon),
        sum_scale: 1.0,
    });
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let module = format!("{root}layers.{index}.ple_block");
        let own = |name: &str| projection(names, &format!("{module}.{name}"));
        layer.token_input = Some(TokenInput {
            gate: own("per_layer_input_gate"),
            activation,
            projection: own("per_layer_projection"),
            norm: rms_norm(names, &format!("{module}.post_per_layer_input_norm"), epsilon),
        });
    }
    // The class projects before pooling. The mean of projections is the projection of the mean.
    blueprint.embedder.push(EmbedderLayer {
        inputs: hidden,
        width: config.unsigned("embedding_dim")?.unwrap_or(768),
        projection: projection(names, &format!("{root}embedding_projection")),
        activation: None,
    });
    Ok(blueprint)
}
