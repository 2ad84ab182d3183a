//! Cohere 2 with experts: a shared expert that may be averaged with the chosen ones, and dense
//! first layers.

use super::cohere2;
use crate::blueprint::{Blueprint, Ffn, HeadLayout, NormKind, RouterScores};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "cohere2_moe",
    model_types: &["cohere2_moe"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), layout: HeadLayout::Interleaved, ..GgufForm::not_yet("cohere2moe") },
    hugging_face: HuggingFaceForm::of("Cohere2MoeForCausalLM", "cohere2_moe").interleaved(),
};

const DEFAULTS: Defaults = Defaults { head_dim: Some(128), ..cohere2::DEFAULTS };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = cohere2::dense(config, DEFAULTS)?;
    if let Some(epsilon) = config.float("rms_norm_eps")? {
        (dense.norm_kind, dense.norm_epsilon) = (NormKind::Rms, epsilon);
    }
    let sparse = experts::after_dense_layers(config, dense.layers.len(), 0)?;
    slide(&mut dense, config, &sparse)?;
    let common = config.unsigned("num_shared_experts")?.unwrap_or(0);
    let sizes = ExpertSizes {
        count: experts::count(config, 8)?,
        width: dense.intermediate,
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(2),
        activation: dense.activation,
    };
    let normalizes = config.flag("norm_topk_prob")?.unwrap_or(true);
    let scores = match config.text("expert_selection_fn").unwrap_or("softmax") {
        "softmax" => RouterScores::SoftmaxOfChosen,
        "sigmoid" => RouterScores::Sigmoid,
        other => return Err(fail(format!("`expert_selection_fn` is {other}, expected softmax or sigmoid"))),
    };
    let averages = match config.text("shared_expert_combination_strategy").unwrap_or("average") {
        "average" => common > 0,
        "sum" => false,
        other => {
            let reason = format!("`shared_expert_combination_strategy` is {other}, expected average or sum");
            return Err(fail(reason));
        }
    };
    let mut blueprint = dense.blueprint(names);
    let width = config.unsigned("prefix_dense_intermediate_size")?.unwrap_or(sizes.width);
    for (layer, sparse) in blueprint.layers.iter_mut().zip(&sparse) {
        match &mut layer.ffn {
            Ffn::Gated(gated) if !sparse => gated.width = width,
            _ if averages => layer.ffn_residual.scale = Some(0.5),
            _ => {}
        }
    }
    let shared = (common > 0).then(|| ("shared_experts", sizes.width.saturating_mul(common)));
    let layers = ExpertLayers { sizes, sparse, module: "mlp", modules: MODULES, shared };
    layers.add(names, &mut blueprint, |router, _| {
        router.scores = scores;
        router.normalize = scores == RouterScores::Sigmoid && normalizes;
    });
    Ok(blueprint)
}

/// Sets the windows, and removes `RoPE` from layers without one. Dense first layers have their own
/// pattern; if that gives none of them a window, they keep `RoPE`.
fn slide(dense: &mut Dense, config: Config<'_>, sparse: &[bool]) -> Result<(), Error> {
    let step = config.step("sliding_window_pattern", cohere2::PATTERN)?;
    let first_step = config.step("prefix_dense_sliding_window_pattern", 1)?;
    let first = sparse.iter().take_while(|sparse| !**sparse).count() as u64;
    let slides = |layer: u64| match layer.checked_sub(first) {
        None => !(layer + 1).is_multiple_of(first_step),
        Some(layer) => !(layer + 1).is_multiple_of(step),
    };
    let layers = dense.layers.len() as u64;
    let slides = config.sliding_layers(layers)?.unwrap_or_else(|| (0..layers).map(slides).collect());
    dense.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(cohere2::WINDOW));
    for (layer, sparse) in dense.layers.iter_mut().zip(sparse) {
        if layer.window.is_none() && (*sparse || first_step != 1) {
            layer.rope = None;
        }
    }
    Ok(())
}

/// Reads GGUF metadata with llama.cpp's constants: dense first layers have `RoPE`, and a shared
/// expert is averaged with the chosen ones.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = cohere2::dense_of_gguf(keys)?;
    if keys.float("attention.layer_norm_epsilon")?.is_none() {
        let epsilon = keys.float("attention.layer_norm_rms_epsilon")?;
        dense.norm_epsilon = epsilon.ok_or_else(|| gguf_keys::fail("the epsilon of the norms is missing"))?;
        dense.norm_kind = NormKind::Rms;
    }
    let first = keys.unsigned("leading_dense_block_count")?.unwrap_or(0);
    for (layer, index) in dense.layers.iter_mut().zip(0..) {
        layer.rope = layer.rope.take().filter(|_| layer.window.is_some() || index < first);
    }
    let mut blueprint = dense.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    for layer in &mut blueprint.layers {
        let Ffn::Experts(experts) = &mut layer.ffn else { continue };
        if experts.router.scores == RouterScores::Softmax && experts.router.normalize {
            (experts.router.scores, experts.router.normalize) = (RouterScores::SoftmaxOfChosen, false);
        }
        layer.ffn_residual.scale = experts.shared.is_some().then_some(0.5);
    }
    Ok(blueprint)
}
