//! Mixtral: a Mistral whose feed-forward networks are experts.

use crate::blueprint::{Blueprint, Ffn};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::experts;
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
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    if let Some(window) = config.unsigned("sliding_window")? {
        dense.slide(&vec![true; dense.layers.len()], window);
    }
    let mut blueprint = dense.blueprint(names);
    let numbers = [
        config.unsigned("num_local_experts")?.unwrap_or(8),
        config.unsigned("intermediate_size")?.unwrap_or(14_336),
        config.unsigned("num_experts_per_tok")?.unwrap_or(2),
    ];
    let activation = config.activation("hidden_act", crate::Activation::Silu)?;
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let module = format!("model.layers.{index}.block_sparse_moe");
        let mut own = experts(names, &module, ["w1", "w3", "w2"], numbers);
        own.activation = activation;
        own.router.normalize = true;
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(blueprint)
}
