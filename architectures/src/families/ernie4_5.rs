//! ERNIE 4.5: a Llama whose `RoPE` pairs are interleaved.

use super::llama;
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "ernie4_5",
    model_types: &["ernie4_5"],
    read_config,
    gguf: &GgufForm {
        read: Some(llama::read_interleaved),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("ernie4_5")
    },
    hugging_face: HuggingFaceForm::of("Ernie4_5ForCausalLM", "ernie4_5").interleaved(),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(128), context: 131_072, theta: 500_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        layout: HeadLayout::Interleaved,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    Ok(dense.blueprint(names))
}
