//! Command R: parallel attention and feed-forward network after one norm, `RoPE` on all layers,
//! norms with separate weights for each head in Command R+.

use crate::blueprint::{Blueprint, HeadLayout, NormKind, NormedPart};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, ONE_NORM};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::with_layer_norms;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "cohere",
    model_types: &["cohere"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("command-r")
    },
    hugging_face: HuggingFaceForm::of("CohereForCausalLM", "cohere").interleaved(),
};

const DEFAULTS: Defaults = Defaults { context: 8192, theta: 500_000.0, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        head_norms: config.flag("use_qk_norm")?.unwrap_or(false),
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        output_scale: Some(config.float("logit_scale")?.unwrap_or(0.0625)),
        ..Dense::from_config(config, DEFAULTS)?
    };
    Ok(parallel(dense, names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        head_norms: names.has("model.layers.0.self_attn.q_norm.weight"),
        output_scale: keys.float("logit_scale")?.filter(|scale| *scale != 0.0),
        ..with_layer_norms(keys)?
    };
    Ok(parallel(dense, names))
}

/// Returns the blueprint with the norms of this family.
fn parallel(dense: Dense, names: &TensorNames) -> Blueprint {
    let dense =
        Dense { norms: ONE_NORM, parallel: true, norm_kind: NormKind::Layer, layout: HeadLayout::Interleaved, ..dense };
    let mut blueprint = dense.blueprint(names);
    blueprint.attentions_mut().for_each(|attention| attention.normed = NormedPart::EachHead);
    blueprint
}
