//! Mixtral: a Mistral whose feed-forward networks are experts.

use crate::blueprint::{Blueprint, Ffn};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::{ExpertSizes, experts};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mixtral",
    model_types: &["mixtral"],
    read_config,
    gguf: &GgufForm::not_yet("mixtral"),
    hugging_face: HuggingFaceForm::of("MixtralForCausalLM", "mixtral"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 131_072, theta: 1_000_000.0, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    dense.slide_all(config, None)?;
    let sizes = ExpertSizes {
        count: config.unsigned("num_local_experts")?.unwrap_or(8),
        width: config.unsigned("intermediate_size")?.unwrap_or(14_336),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(2),
        activation: dense.activation,
    };
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let module = format!("model.layers.{index}.block_sparse_moe");
        let mut own = experts(names, &module, ["w1", "w3", "w2"], sizes);
        own.router.normalize = true;
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(blueprint)
}
