//! How a model ranks: the settings for pairs of texts and for scores in its documents.
//!
//! - The blueprint: whether there is a head that scores, and how many numbers it computes.
//! - `modules.json` and `…_LogitScore/config.json`: `true_token_id` and `false_token_id`, the
//!   tokens whose logits after the prompt form the score.
//! - `config_sentence_transformers.json`, `config.json`: `activation_fn`, which is applied to the
//!   number; sigmoid by default.
//! - `sentence_bert_config.json`, `tokenizer_config.json`: `max_seq_length`, else
//!   `model_max_length`; see [`form`] for pairs.
//!
//! Two numbers, such as the logits of `yes` and `no`, become one: their difference, whose sigmoid
//! is the share of the first.
//!
//! Sources: `cross_encoder/model.py` and `modules/logit_score.py` of sentence-transformers 6;
//! `build_pooling` of llama.cpp.

mod form;
mod inputs;

use anyhow::{Context, Result, bail, ensure};
use architectures::{Blueprint, Score, ScorerInput};
use serde_json::Value;

use crate::documents::Documents;
use crate::text::sentence::modules;
use crate::text::text_model::TextModel;
pub(crate) use form::Asked;
use form::Form;
pub(crate) use inputs::Inputs;

/// Larger than the limit of any model: libraries write such a number if there is no limit.
const NO_LIMIT: u64 = 1 << 32;
/// The module of sentence-transformers that computes a score from logits.
const LOGIT_SCORE: &str = "LogitScore";

/// How a model ranks.
#[derive(Debug)]
pub(crate) struct Ranking {
    /// The source of the numbers.
    pub(crate) source: ScoreSource,
    /// Indexes of the numbers that form the score.
    score: Score,
    activation: Activation,
    form: Form,
    /// Largest number of tokens of a prompt.
    most: usize,
    /// The padding token, which does not count as the last token.
    padding: Option<u32>,
    /// Whether a prompt that begins like the previous one may reuse what was computed for it.
    pub(crate) keeps_beginning: bool,
}

/// The source of the numbers for a pair of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScoreSource {
    /// A head of the model.
    Head,
    /// The logits after the prompt.
    Logits,
}

/// A function that is applied to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Identity,
    Sigmoid,
    Tanh,
}

impl Ranking {
    /// Reads the settings from a model's documents.
    ///
    /// # Errors
    /// Fails, with the reason, if the model cannot rank.
    pub(crate) fn of(documents: Documents<'_>, blueprint: &Blueprint, text: &TextModel) -> Result<Self> {
        check_modules(documents)?;
        let (source, score) = match &blueprint.scorer {
            Some(scorer) => {
                let count = scorer.labels;
                let none = || {
                    format!(
                        "its head gives {count} numbers for a text, expected one, or two of which one is called `yes`"
                    )
                };
                (ScoreSource::Head, scorer.score.with_context(none)?)
            }
            None => (ScoreSource::Logits, of_logits(documents, blueprint)?),
        };
        let sees_last = blueprint.scorer.as_ref().is_none_or(|scorer| scorer.input == ScorerInput::Last);
        let padding = documents.json("config.json")?["pad_token_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let limit = documents.json("tokenizer_config.json")?["model_max_length"].as_u64();
        let own = documents.json("sentence_bert_config.json")?["max_seq_length"].as_u64();
        let most = own.or(limit.filter(|most| *most < NO_LIMIT)).filter(|most| *most > 0);
        Ok(Self {
            source,
            score,
            activation: Activation::of(documents)?,
            form: Form::of(documents, blueprint, text)?,
            most: most.unwrap_or(u64::MAX).min(blueprint.context) as usize,
            padding: padding.filter(|_| sees_last && source == ScoreSource::Head),
            keeps_beginning: sees_last && blueprint.causal,
        })
    }

    /// Returns the score from numbers, one for each label or token. If `raw`, no activation is
    /// applied.
    pub(crate) fn score(&self, number: impl Fn(usize) -> f64, raw: bool) -> f64 {
        let score = number(self.score.yes as usize) - self.score.no.map_or(0.0, |no| number(no as usize));
        match self.activation {
            _ if raw => score,
            Activation::Identity => score,
            Activation::Sigmoid => 1.0 / (1.0 + (-score).exp()),
            Activation::Tanh => score.tanh(),
        }
    }
}

/// Refuses modules that would change the score but are not supported.
fn check_modules(documents: Documents<'_>) -> Result<()> {
    let unknown = modules(documents)?.into_iter().find(|module| !["Transformer", LOGIT_SCORE].contains(&module.name()));
    match unknown {
        Some(module) => bail!(
            "its module `{}` ({}) is not supported for ranking; expected Transformer and LogitScore",
            module.path,
            module.kind
        ),
        None => Ok(()),
    }
}

/// Returns the token whose logit is the score, and the token whose logit is subtracted from it, if
/// any.
fn of_logits(documents: Documents<'_>, blueprint: &Blueprint) -> Result<Score> {
    let module = modules(documents)?.into_iter().find(|module| module.name() == LOGIT_SCORE);
    let module = module.context("it has neither a head that scores texts nor a module `LogitScore`")?;
    ensure!(blueprint.output.is_some(), "its module `LogitScore` needs logits, which the model does not give");
    let name = module.config_name();
    let config = documents.json(&name)?;
    let token = |key: &str| -> Result<Option<u64>> {
        let Some(id) = config.get(key).filter(|id| !id.is_null()) else { return Ok(None) };
        let token = id.as_u64().filter(|id| *id < blueprint.vocabulary);
        Ok(Some(token.with_context(|| format!("`{key}` of `{name}` is {id}, which is no token of the model"))?))
    };
    let yes = token("true_token_id")?.with_context(|| format!("`{name}` has no `true_token_id`"))?;
    Ok(Score { yes, no: token("false_token_id")? })
}

impl Activation {
    fn of(documents: Documents<'_>) -> Result<Self> {
        let own = documents.json("config_sentence_transformers.json")?;
        let config = documents.json("config.json")?;
        let says = [
            &own["activation_fn"],
            &config["sentence_transformers"]["activation_fn"],
            &config["sbert_ce_default_activation_function"],
        ];
        // sentence-transformers also ignores names from other packages.
        let name = says.into_iter().find_map(Value::as_str).filter(|name| name.starts_with("torch."));
        Ok(match name.and_then(|name| name.rsplit('.').next()) {
            None | Some("Sigmoid") => Self::Sigmoid,
            Some("Identity") => Self::Identity,
            Some("Tanh") => Self::Tanh,
            Some(other) => bail!("its scores go through `{other}`, expected Sigmoid, Identity or Tanh"),
        })
    }
}
