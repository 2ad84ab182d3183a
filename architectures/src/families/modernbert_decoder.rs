//! `ModernBERT` decoders (Ettin): a `ModernBERT` whose tokens attend to earlier ones only, with a
//! layer before the output.

use super::modernbert;
use crate::blueprint::{Activation, Blueprint, Output, OutputHead};
use crate::config_json::Config;
use crate::dense::{layer_norm, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "modernbert-decoder",
    model_types: &["modernbert-decoder"],
    read_config,
    gguf: &GgufForm::not_yet("modern-bert-decoder"),
    hugging_face: HuggingFaceForm::of("ModernBertDecoderForCausalLM", "modernbert-decoder"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = modernbert::read_config(config, names)?;
    let window = config.unsigned("local_attention")?.unwrap_or(modernbert::WINDOW) / 2;
    let root =
        blueprint.embedding.weight.name.strip_suffix("embeddings.tok_embeddings.weight").unwrap_or("").to_owned();
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let own = |module: &str| projection(names, &format!("{root}layers.{index}.attn.{module}"));
        (attention.query, attention.key, attention.value) = (own("q_proj"), own("k_proj"), own("v_proj"));
        attention.window = attention.window.map(|_| window);
    }
    let mut output = projection(names, "decoder");
    if !names.has("decoder.weight") {
        output.weight = blueprint.embedding.weight.clone();
    }
    let epsilon = config.float("norm_eps")?.unwrap_or(1e-5);
    let head = OutputHead {
        projection: projection(names, "lm_head.dense"),
        activation: config.activation("classifier_activation", Activation::Gelu)?,
        norm: layer_norm(names, "lm_head.norm", epsilon),
    };
    blueprint.causal = true;
    blueprint.output = Some(Output { head: Some(Box::new(head)), ..Output::of(output) });
    Ok(blueprint)
}
