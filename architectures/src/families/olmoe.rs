//! `OLMoE`: experts, norms of queries and keys over their full width, clipped projections.

use crate::blueprint::{Blueprint, Ffn, NormedPart, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::{self, ExpertSizes, MODULES, count, experts};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "olmoe",
    model_types: &["olmoe"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("olmoe") },
    hugging_face: HuggingFaceForm::of("OlmoeForCausalLM", "olmoe"),
};

const DEFAULTS: Defaults = Defaults { context: 4096, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        head_norms: true,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    let sizes = ExpertSizes {
        count: count(config, 64)?,
        width: dense.intermediate,
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(8),
        activation: dense.activation,
    };
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(false);
    let clip = config.float("clip_qkv")?;
    let mut blueprint = dense.blueprint(names);
    for attention in blueprint.attentions_mut() {
        (attention.normed, attention.clip) = (NormedPart::Width, clip);
    }
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let mut own = experts(names, &format!("model.layers.{index}.mlp"), MODULES, sizes);
        own.router.normalize = normalize;
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constant: weights of the selected experts are not
/// normalized.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense { head_norms: true, ..Dense::from_gguf(keys)? }.blueprint(names);
    let clip = keys.float("attention.clamp_kqv")?.filter(|clip| *clip != 0.0);
    for attention in blueprint.attentions_mut() {
        (attention.normed, attention.clip) = (NormedPart::Width, clip);
    }
    experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::Softmax)?;
    Ok(blueprint)
}
