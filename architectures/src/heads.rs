//! Heads that score texts, recognized by the model's documents and tensors.
//!
//! | tensors | head | pooled | activation |
//! |---|---|---|---|
//! | `score` | a decoder's | last token | |
//! | `classifier.dense`, `classifier.out_proj` | `RoBERTa`'s | first token | tanh |
//! | `head.dense`, `head.norm`, `classifier` | `ModernBERT`'s | by `classifier_pooling` | gelu |
//! | `pooler.dense`, `classifier` | BERT's | first token | tanh |
//! | `cls`, `cls.norm`, `cls.output` of a GGUF file | any | see below | tanh; gelu with a norm |
//! | `cls` alone | any | see below | |
//!
//! Heads of GGUF files pool the first token; for decoders the last token, for `ModernBERT` the
//! mean.
//!
//! Sources: `modeling_{bert,roberta,modernbert}.py` and `modeling_layers.py`
//! (`GenericForSequenceClassification`) of transformers; `build_pooling` of llama.cpp for files
//! whose `pooling_type` is 4.

use crate::blueprint::{Blueprint, PooledActivation, Score, Scorer, ScorerDense, ScorerInput};
use crate::config_json::{self, Config};
use crate::dense::layer_norm;
use crate::dense::projection;
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

/// Suffix of transformers' classes with such a head.
const CLASS: &str = "ForSequenceClassification";
/// `pooling_type` of a file whose model has such a head.
const RANK: u64 = 4;
/// Label of texts that answer a query.
const YES: &str = "yes";
/// Architecture of files whose heads pool the mean.
const MEAN: &str = "modern-bert";
/// Default number of labels, as in transformers.
const LABELS: u64 = 2;

/// Adds the head to a blueprint, if the config states that the model has one.
pub(crate) fn of_config(config: Config<'_>, names: &TensorNames, blueprint: &mut Blueprint) -> Result<(), Error> {
    let classes = config.list("architectures")?.unwrap_or_default();
    if !classes.iter().filter_map(|class| class.as_str()).any(|class| class.ends_with(CLASS)) {
        return Ok(());
    }
    let names_of_labels = config.object("id2label")?;
    let labels = match (config.unsigned("num_labels")?, names_of_labels) {
        (Some(labels), _) => labels,
        (None, Some(names)) => names.map().len() as u64,
        (None, None) => LABELS,
    };
    let label = |index: u64| names_of_labels?.text(&index.to_string());
    let dense = |module: &str| projection(names, module);
    let with_tanh =
        |module: &str| Some(ScorerDense { projection: dense(module), activation: PooledActivation::Tanh, norm: None });
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
        // Without its tensors, only the documents of the model are known, as for a model whose
        // weights are not stored. The head is omitted.
        return Ok(());
    };
    let score = score(labels, label);
    blueprint.scorer = Some(Scorer { input, dense, output: projection(names, output), labels, score });
    blueprint.output = None;
    Ok(())
}

/// Returns the score among the outputs: the only output, or of two outputs `yes` minus the other,
/// which determines the probability of `yes` among both.
fn score<'a>(labels: u64, label: impl Fn(u64) -> Option<&'a str>) -> Option<Score> {
    match labels {
        1 => Some(Score { yes: 0, no: None }),
        2 => (0..2).find(|index| label(*index) == Some(YES)).map(|yes| Score { yes, no: Some(1 - yes) }),
        _ => None,
    }
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
        activation: PooledActivation::Gelu,
        norm: Some(norm),
    })
}

/// Adds the head to a blueprint, if the file states that the model has one.
pub(crate) fn of_gguf(keys: Keys<'_>, names: &TensorNames, blueprint: &mut Blueprint) -> Result<(), Error> {
    if keys.unsigned("pooling_type")? != Some(RANK) {
        return Ok(());
    }
    let rows = |name: &str| {
        let tensor = keys.gguf.tensors.iter().find(|tensor| tensor.name == name);
        tensor.map(|tensor| tensor.dims.get(1).copied().unwrap_or(1))
    };
    let own = keys.labels();
    // In a split, the tensors may be in another file than the keys.
    let named = Some(own.len() as u64).filter(|count| *count > 0);
    let labels = |name: &str| rows(name).or(named).unwrap_or(1);
    let (dense, output, labels) = match (names.has("cls.weight"), names.has("cls.output.weight")) {
        (has_dense, true) => {
            let norm = names.has("cls.norm.weight").then(|| layer_norm(names, "cls.norm", blueprint.epsilon()));
            let activation = if norm.is_some() { PooledActivation::Gelu } else { PooledActivation::Tanh };
            let dense = || ScorerDense { projection: projection(names, "cls"), activation, norm };
            (has_dense.then(dense), "cls.output", labels("cls.output.weight"))
        }
        (true, false) => (None, "cls", labels("cls.weight")),
        (false, false) => return Ok(()),
    };
    let input = match keys.architecture {
        MEAN => ScorerInput::Mean,
        _ if blueprint.causal => ScorerInput::Last,
        _ => ScorerInput::First,
    };
    let score = score(labels, |index| own.get(index as usize).copied());
    blueprint.scorer = Some(Scorer { input, dense, output: projection(names, output), labels, score });
    blueprint.output = None;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, describe};

    fn described(config: &str, tensors: &[&str]) -> Blueprint {
        let names: TensorNames = tensors.iter().map(|name| (*name).to_owned()).collect();
        describe(Document::Config(config.as_bytes()), &names).expect("a config").blueprint
    }

    fn bert(more: &str) -> String {
        format!(
            r#"{{"model_type": "bert", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "vocab_size": 320{more}}}"#
        )
    }

    #[test]
    fn only_who_says_so_scores() {
        let tensors = ["bert.pooler.dense.weight", "classifier.weight", "classifier.bias"];
        let class =
            |class: &str| described(&bert(&format!(r#", "architectures": ["{class}"], "num_labels": 1"#)), &tensors);
        assert!(class("BertForTokenClassification").scorer.is_none());
        let scorer = class("BertForSequenceClassification").scorer.expect("a head");
        assert_eq!((scorer.input, scorer.labels), (ScorerInput::First, 1));
        assert_eq!(scorer.dense.expect("the pooler").projection.module, "bert.pooler.dense");
        let bare = described(&bert(r#", "architectures": ["BertForSequenceClassification"]"#), &[]);
        assert!(bare.scorer.is_none(), "its tensors are not known");
    }

    #[test]
    fn a_score_is_one_number_or_the_difference_of_yes_and_no() {
        let labels = |labels: &'static [&str]| score(labels.len() as u64, |index| labels.get(index as usize).copied());
        assert_eq!(labels(&["LABEL_0"]), Some(Score { yes: 0, no: None }));
        assert_eq!(labels(&["no", "yes"]), Some(Score { yes: 1, no: Some(0) }));
        assert_eq!(labels(&["yes", "no"]), Some(Score { yes: 0, no: Some(1) }));
        assert_eq!(labels(&["negative", "positive"]), None);
        assert_eq!(labels(&["yes", "no", "perhaps"]), None);
    }

    #[test]
    fn decoders_that_score_give_no_logits() {
        let config = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"], "hidden_size": 64,
            "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 320,
            "id2label": {"0": "x"}}"#;
        let found = described(config, &["score.weight", "model.embed_tokens.weight"]);
        assert!(found.output.is_none());
        assert_eq!(found.scorer.map(|scorer| scorer.input), Some(ScorerInput::Last));
    }
}
