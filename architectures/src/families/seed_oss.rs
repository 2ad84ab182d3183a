//! Seed-OSS: a Llama with biases of queries, keys and values, and its own head size.

use super::llama;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "seed_oss",
    model_types: &["seed_oss"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("post_attention_norm", "post_attention_layernorm")],
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("seed_oss")
    },
    hugging_face: HuggingFaceForm::of("SeedOssForCausalLM", "seed_oss"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 524_288, theta: 10_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Dense::from_config(config, DEFAULTS)?.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Dense::from_gguf(keys)?.blueprint(names))
}
