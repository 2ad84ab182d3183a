//! Heads that score texts: found by what a model says of itself and by the tensors that it has.
//!
//! | tensors | head | pooled | activation |
//! |---|---|---|---|
//! | `score` | a decoder's | last token | |
//! | `classifier.dense`, `classifier.out_proj` | `RoBERTa`'s | first token | tanh |
//! | `head.dense`, `head.norm`, `classifier` | `ModernBERT`'s | as `classifier_pooling` says | gelu |
//! | `pooler.dense`, `classifier` | BERT's | first token | tanh |
//! | `cls`, `cls.norm`, `cls.output` of a GGUF file | any | first token, a decoder's last | tanh; gelu where there is a norm |
//!
//! Sources: `modeling_{bert,roberta,modernbert}.py` and `modeling_layers.py` (`GenericForSequenceClassification`) of transformers;
//! `build_pooling` of llama.cpp for files whose `pooling_type` is 4.

use crate::blueprint::{Blueprint, Scorer, ScorerActivation, ScorerDense, ScorerInput};
use crate::config_json::{self, Config};
use crate::dense::projection;
use crate::gguf_keys::Keys;
use crate::plain::layer_norm;
use crate::{Error, TensorNames};

/// What the name of a class of transformers ends with that has such a head.
const CLASS: &str = "ForSequenceClassification";
/// `pooling_type` of a file whose model has such a head.
const RANK: u64 = 4;
/// Labels of a config that does not say how many: transformers' default.
const LABELS: u64 = 2;

/// Puts the head into a blueprint, where the config says that the model has one.
pub(crate) fn of_config(config: Config<'_>, names: &TensorNames, blueprint: &mut Blueprint) -> Result<(), Error> {
    let classes = config.list("architectures")?.unwrap_or_default();
    if !classes.iter().filter_map(|class| class.as_str()).any(|class| class.ends_with(CLASS)) {
        return Ok(());
    }
    let labels = match config.unsigned("num_labels")? {
        Some(labels) => labels,
        None => config.object("id2label")?.map_or(LABELS, |labels| labels.0.len() as u64),
    };
    let dense = |module: &str| projection(names, module);
    let with_tanh =
        |module: &str| Some(ScorerDense { projection: dense(module), activation: ScorerActivation::Tanh, norm: None });
    let has = |module: &str| names.has(&format!("{module}.weight"));
    let pooler = ["bert.pooler.dense", "pooler.dense"].into_iter().find(|module| has(module));
    let (input, dense, output) = if has("score") {
        (ScorerInput::Last, None, "score")
    } else if has("classifier.out_proj") {
        (ScorerInput::First, with_tanh("classifier.dense"), "classifier.out_proj")
    } else if has("head.dense") && has("classifier") {
        (modernbert_pooled(config)?, Some(modernbert_dense(config, names)?), "classifier")
    } else if let Some(pooler) = pooler.filter(|_| has("classifier")) {
        (ScorerInput::First, with_tanh(pooler), "classifier")
    } else {
        // Without its tensors it is known by its documents only, as a model is whose weights are not here.
        return Ok(());
    };
    blueprint.scorer = Some(Scorer { input, dense, output: projection(names, output), labels });
    blueprint.output = None;
    Ok(())
}

fn modernbert_pooled(config: Config<'_>) -> Result<ScorerInput, Error> {
    match config.text("classifier_pooling") {
        None | Some("cls") => Ok(ScorerInput::First),
        Some("mean") => Ok(ScorerInput::Mean),
        Some(other) => Err(config_json::fail(format!("`classifier_pooling` is `{other}`, expected cls or mean"))),
    }
}

fn modernbert_dense(config: Config<'_>, names: &TensorNames) -> Result<ScorerDense, Error> {
    if let Some(other) = config.text("classifier_activation").filter(|name| *name != "gelu") {
        return Err(config_json::fail(format!("`classifier_activation` is `{other}`, expected gelu")));
    }
    let norm = layer_norm(names, "head.norm", config.float("norm_eps")?.unwrap_or(1e-5));
    Ok(ScorerDense {
        projection: projection(names, "head.dense"),
        activation: ScorerActivation::Gelu,
        norm: Some(norm),
    })
}

/// Puts the head into a blueprint, where the file says that the model has one.
pub(crate) fn of_gguf(keys: Keys<'_>, names: &TensorNames, blueprint: &mut Blueprint) -> Result<(), Error> {
    let has = |name: &str| names.has(name);
    if keys.unsigned("pooling_type")? != Some(RANK) || !has("cls.output.weight") {
        return Ok(());
    }
    let tensor = keys.gguf.tensors.iter().find(|tensor| tensor.name == "cls.output.weight");
    let named = keys.labels().map(|labels| labels.len());
    let labels = tensor.map(|tensor| tensor.dims.get(1).copied().unwrap_or(1)).or(named).unwrap_or(1);
    let dense = has("cls.weight").then(|| {
        let norm = has("cls.norm.weight").then(|| layer_norm(names, "cls.norm", blueprint.epsilon()));
        let activation = if norm.is_some() { ScorerActivation::Gelu } else { ScorerActivation::Tanh };
        ScorerDense { projection: projection(names, "cls"), activation, norm }
    });
    let input = if blueprint.causal { ScorerInput::Last } else { ScorerInput::First };
    blueprint.scorer = Some(Scorer { input, dense, output: projection(names, "cls.output"), labels });
    blueprint.output = None;
    Ok(())
}
