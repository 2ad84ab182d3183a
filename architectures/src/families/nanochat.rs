//! nanochat: norms without weights, also behind the embedding and of heads after `RoPE`, which
//! rotates backwards; networks without gates.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, unweighted_norm};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::without_gates;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "nanochat",
    model_types: &["nanochat"],
    read_config,
    gguf: &GgufForm::not_yet("nanochat"),
    hugging_face: HuggingFaceForm::of("NanoChatForCausalLM", "nanochat"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(6), ..LLAMA };
const SOFT_CAP: f64 = 15.0;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[("final_logit_softcapping", "logits_soft_cap")]);
    let mut dense = Dense {
        activation: config.activation("hidden_act", Activation::ReluSquared)?,
        ..Dense::from_config(config, DEFAULTS)?
    };
    for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
        rope.reversed = true;
    }
    let norm = Some(unweighted_norm(dense.norm_epsilon));
    let mut blueprint = without_gates(dense.blueprint(names), names, ["fc1", "fc2"]);
    for layer in &mut blueprint.layers {
        (layer.mixer_residual.before, layer.ffn_residual.before) = (norm.clone(), norm.clone());
    }
    for attention in blueprint.attentions_mut() {
        attention.norms_follow_rope = true;
        (attention.query_norm, attention.key_norm) = (norm.clone(), norm.clone());
    }
    (blueprint.embedding.norm, blueprint.norm) = (norm.clone(), norm);
    let cap = config.float("final_logit_softcapping")?;
    if let Some(output) = &mut blueprint.output {
        output.soft_cap = cap.or((!config.is_null("final_logit_softcapping")).then_some(SOFT_CAP));
    }
    Ok(blueprint)
}
