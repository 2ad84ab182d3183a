//! `MiniMax` M2: experts in every layer, selected by sigmoid scores with a bias, norms of queries
//! and keys over their full width.

use super::deepseek_v2::scores;
use crate::blueprint::{Blueprint, Ffn, NormedPart, RouterScores, Tensor};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::experts::{self, ExpertSizes, count};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "minimax_m2",
    model_types: &["minimax_m2"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("minimax-m2") },
    hugging_face: HuggingFaceForm::of("MiniMaxM2ForCausalLM", "minimax_m2"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 196_608, theta: 5_000_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.head_norms = config.flag("use_qk_norm")?.unwrap_or(true);
    if let Some(rotated) = config.unsigned("rotary_dim")?.filter(|rotated| *rotated != dense.head_dim) {
        for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
            rope.dimension = Some(rotated);
        }
    }
    let sizes = ExpertSizes {
        count: count(config, 256)?,
        width: dense.intermediate,
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(8),
        activation: dense.activation,
    };
    let scores = scores(config, RouterScores::Sigmoid)?;
    let mut blueprint = normed_over_the_width(dense, names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let module = format!("model.layers.{index}.block_sparse_moe");
        let mut own = experts::experts(names, &module, ["w1", "w3", "w2"], sizes);
        (own.router.normalize, own.router.scores) = (true, scores);
        let bias = format!("{module}.e_score_correction_bias");
        own.router.bias = names.has(&bias).then(|| Tensor::named(bias));
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constants: sigmoid scores, weights of the selected experts
/// divided by their sum.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = normed_over_the_width(Dense { head_norms: true, ..Dense::from_gguf(keys)? }, names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    Ok(blueprint)
}

fn normed_over_the_width(dense: Dense, names: &TensorNames) -> Blueprint {
    let mut blueprint = dense.blueprint(names);
    for attention in blueprint.attentions_mut() {
        attention.normed = NormedPart::Width;
    }
    blueprint
}
