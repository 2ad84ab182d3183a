//! How a model ranks: what its documents say of pairs of texts, and of what makes a score of them.
//!
//! | document | what it says |
//! |---|---|
//! | the blueprint | whether there is a head that scores, and how many numbers it gives |
//! | `modules.json`, `…_LogitScore/config.json` | `true_token_id`, `false_token_id`: the logits after the prompt that make the score |
//! | `config_sentence_transformers.json`, `config.json` | `activation_fn`: what is done to the number; else sigmoid |
//! | `sentence_bert_config.json` | whether pairs are rendered by the chat template (`modality_config`), with which variables |
//! | `tokenizer_config.json` | `model_max_length`; whether the second text is of the second type (`model_input_names`) |
//! | GGUF | `classifier.output_labels`; the template `rerank`, with `{query}` and `{document}` in it |
//!
//! Pairs that are rendered are messages of the roles `system` (the instruction), `query` and `document`. Two numbers, as of `yes` and
//! `no`, are one: their difference, whose sigmoid is the share of the first.
//!
//! Sources: `cross_encoder/model.py` and `modules/logit_score.py` of sentence-transformers 6; `build_pooling` and
//! `format_prompt_rerank` of llama.cpp.

use anyhow::{Context, Result, bail, ensure};
use architectures::{Blueprint, ScorerInput};
use formats::Gguf;
use prompt::Special;
use protocol::{Message, Prompt, RenderRequest};
use serde_json::{Map, Value};
use vocabulary::chat_templates;

use crate::model::{Documents, TextModel};
use crate::sentence::modules;

/// Texts that no tokens have in common at their end: what is common to prompts with them follows a document.
const PROBES: [&str; 2] = ["0", "1 2 3 4"];
/// More than any model's texts: libraries write such a number where there is no limit.
const NO_LIMIT: u64 = 1 << 32;
/// What files call the label of texts that answer.
const YES: &str = "yes";
/// The module of sentence-transformers that makes a score of logits.
const LOGIT_SCORE: &str = "LogitScore";

/// How a model ranks.
#[derive(Debug)]
pub(crate) struct Ranking {
    /// What gives numbers.
    pub(crate) judge: Judge,
    /// Which of them is the score.
    yes: usize,
    /// Which is taken from it.
    no: Option<usize>,
    activation: Activation,
    form: Form,
    /// The most tokens of a prompt; else as many as the context has.
    pub(crate) most: Option<usize>,
    /// Whether tokens of the second text are of the second type.
    has_types: bool,
    /// Fills up, and so does not count as the last token.
    padding: Option<u32>,
    /// Whether a prompt that begins like the one before needs not be computed from its beginning.
    pub(crate) keeps_beginning: bool,
}

/// What gives numbers for a pair of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// A head of the model.
    Head,
    /// The logits after the prompt.
    Logits,
}

/// What is done to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Identity,
    Sigmoid,
    Tanh,
}

/// How a pair of texts becomes tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// As the tokenizer puts two texts together.
    Pair,
    /// As the chat template renders them, with these variables.
    Conversation(Map<String, Value>),
    /// Put into this text.
    Text(String),
}

/// A query and a document, as tokens.
#[derive(Debug)]
pub(crate) enum Input {
    Pair(prompt::Pair),
    /// A prompt whose last tokens (`end`) follow the document.
    Rendered {
        tokens: Vec<u32>,
        end: usize,
    },
}

impl Ranking {
    /// What a model's documents say.
    ///
    /// # Errors
    /// Why it cannot rank.
    pub(crate) fn of(documents: Documents<'_>, blueprint: &Blueprint, text: &TextModel) -> Result<Self> {
        check_modules(documents)?;
        let json = |name: &str| documents.json(name).unwrap_or_default();
        let header = documents.iter().find_map(|(_, bytes)| Gguf::parse_header(bytes).ok());
        let (judge, [yes, no]) = match &blueprint.scorer {
            Some(scorer) => (Judge::Head, of_labels(scorer.labels, &labels(documents, header.as_ref()))?),
            None => (Judge::Logits, of_logits(documents, blueprint)?),
        };
        let sees_last = blueprint.scorer.as_ref().is_none_or(|scorer| scorer.input == ScorerInput::Last);
        let padding = json("config.json")["pad_token_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let limit = json("tokenizer_config.json")["model_max_length"].as_u64().filter(|most| *most < NO_LIMIT);
        let most = json("sentence_bert_config.json")["max_seq_length"].as_u64().or(limit).filter(|most| *most > 0);
        Ok(Self {
            judge,
            yes: yes.unwrap_or(0),
            no,
            activation: Activation::of(documents)?,
            form: Form::of(documents, header.as_ref(), text),
            has_types: header.is_some() || gives_types(&json("tokenizer_config.json")),
            most: most.map(|most| most as usize),
            padding: padding.filter(|_| sees_last && judge == Judge::Head),
            keeps_beginning: sees_last && blueprint.causal,
        })
    }

    /// The score that numbers make, of which there are as many as labels, or tokens; `raw` where nothing is to be done to it.
    pub(crate) fn score(&self, number: impl Fn(usize) -> f64, raw: bool) -> f64 {
        let score = number(self.yes) - self.no.map_or(0.0, number);
        match self.activation {
            _ if raw => score,
            Activation::Identity => score,
            Activation::Sigmoid => 1.0 / (1.0 + (-score).exp()),
            Activation::Tanh => score.tanh(),
        }
    }

    /// The tokens of a query and a document, of which no more than `most` are the document's; `end` is [`end`](Self::end). Says how
    /// many tokens were dropped, too.
    ///
    /// # Errors
    /// What the tokenizer or the template says.
    pub(crate) fn input(&self, asked: &Asked<'_>, document: &str, end: usize) -> Result<(Input, usize)> {
        let Asked { text, query, instruction, lowers, most } = *asked;
        if self.form == Form::Pair {
            let lower = |text: &str| if lowers { text.to_lowercase() } else { text.to_owned() };
            let mut pair = text.tokenizer.pair([&lower(&[instruction, query].concat()), &lower(document)])?;
            let dropped = pair.truncate(usize::MAX, most.unwrap_or(usize::MAX));
            pair.second = pair.second.filter(|_| self.has_types);
            while self.padding.is_some() && pair.tokens.len() > 1 && pair.tokens.last().copied() == self.padding {
                pair.tokens.pop();
            }
            return Ok((Input::Pair(pair), dropped));
        }
        let Some(most) = most else {
            return Ok((Input::Rendered { tokens: self.rendered(asked, document)?, end }, 0));
        };
        let tokens = text.tokenizer.encode(document, Special { add: false, parse: false })?;
        let dropped = tokens.len().saturating_sub(most);
        if dropped == 0 {
            return Ok((Input::Rendered { tokens: self.rendered(asked, document)?, end }, 0));
        }
        // The last token may have ended within a character.
        let begins = text.tokenizer.decode(&tokens[..most], true)?;
        let tokens = self.rendered(asked, begins.trim_end_matches('\u{fffd}'))?;
        Ok((Input::Rendered { tokens, end }, dropped))
    }

    /// How many tokens follow a document, where it is put into a longer text.
    ///
    /// # Errors
    /// What the tokenizer or the template says.
    pub(crate) fn end(&self, asked: &Asked<'_>) -> Result<usize> {
        if self.form == Form::Pair {
            return Ok(0);
        }
        let [one, other] = PROBES.map(|probe| self.rendered(asked, probe));
        let (one, other) = (one?, other?);
        Ok(one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count())
    }

    fn rendered(&self, asked: &Asked<'_>, document: &str) -> Result<Vec<u32>> {
        let variables = match &self.form {
            Form::Text(form) => return asked.text.rendered(&filled(form, asked.query, document), false),
            Form::Conversation(variables) => variables.clone(),
            Form::Pair => Map::new(),
        };
        let message = |role: &str, content: &str| Message {
            role: role.to_owned(),
            content: content.to_owned(),
            ..Message::default()
        };
        let system = (!asked.instruction.is_empty()).then(|| message("system", asked.instruction));
        let pair = [message("query", asked.query), message("document", document)];
        let mut request =
            RenderRequest { messages: system.into_iter().chain(pair).collect(), variables, ..RenderRequest::default() };
        let begins = request.variables.remove("add_generation_prompt");
        request.add_generation_prompt = begins == Some(Value::Bool(true));
        Ok(asked.text.prompt(&Prompt::Chat(Box::new(request)))?.tokens)
    }
}

/// What documents are held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// Makes tokens.
    pub(crate) text: &'a TextModel,
    pub(crate) query: &'a str,
    /// What counts as an answer; may be empty.
    pub(crate) instruction: &'a str,
    /// Texts are in lower case.
    pub(crate) lowers: bool,
    /// The most tokens of a document.
    pub(crate) most: Option<usize>,
}

/// Puts a query and a document into a text, whatever stands in them.
fn filled(form: &str, query: &str, document: &str) -> String {
    let parts = form.split("{query}").map(|part| part.split("{document}").collect::<Vec<_>>().join(document));
    parts.collect::<Vec<_>>().join(query)
}

/// Whether a tokenizer of transformers gives a model the types of tokens: classes that are of no family do not unless they are told to
/// (`tokenization_utils_base.py`, version 5).
fn gives_types(config: &Value) -> bool {
    match config["model_input_names"].as_array() {
        Some(names) => names.iter().any(|name| name == "token_type_ids"),
        None => !matches!(config["tokenizer_class"].as_str(), Some("PreTrainedTokenizerFast" | "TokenizersBackend")),
    }
}

/// Refuses modules that would change the score and are not computed.
fn check_modules(documents: Documents<'_>) -> Result<()> {
    let unknown = modules(documents).into_iter().find(|module| !["Transformer", LOGIT_SCORE].contains(&module.name()));
    match unknown {
        Some(module) => bail!("its module `{}` ({}) gives no scores here", module.path, module.kind),
        None => Ok(()),
    }
}

/// The places among the numbers of a head: of the one that is the score, and of the one that is taken from it.
fn of_labels(count: u64, labels: &[String]) -> Result<[Option<usize>; 2]> {
    if count == 1 {
        return Ok([Some(0), None]);
    }
    let yes = labels.iter().take(2).position(|label| label == YES).filter(|_| count == 2);
    let yes = yes.with_context(|| {
        let labels = labels.join(", ");
        format!("its head gives {count} numbers ({labels}) for a text, a ranking needs one")
    })?;
    Ok([Some(yes), Some(1 - yes)])
}

/// What the numbers of a head are called, where the model says.
fn labels(documents: Documents<'_>, header: Option<&Gguf<'_>>) -> Vec<String> {
    let of_file = header.and_then(|gguf| {
        let architecture = gguf.text("general.architecture")?;
        gguf.array(&format!("{architecture}.classifier.output_labels"))
    });
    if let Some(labels) = of_file {
        return labels.iter().filter_map(|label| Some(label.as_str()?.to_owned())).collect();
    }
    let config = documents.json("config.json").unwrap_or_default();
    let label = |index: usize| Some(config["id2label"].get(index.to_string())?.as_str()?.to_owned());
    (0..).map_while(label).collect()
}

/// The tokens whose logits are the score, and what is taken from it.
fn of_logits(documents: Documents<'_>, blueprint: &Blueprint) -> Result<[Option<usize>; 2]> {
    let module = modules(documents).into_iter().find(|module| module.name() == LOGIT_SCORE);
    let module = module.context("it has neither a head that scores texts nor a module `LogitScore`")?;
    ensure!(blueprint.output.is_some(), "its module `LogitScore` needs logits, which the model does not give");
    let name = format!("{}/config.json", module.path);
    let config = documents.json(&name)?;
    let token = |key: &str| -> Result<Option<usize>> {
        let Some(id) = config.get(key).filter(|id| !id.is_null()) else { return Ok(None) };
        let token = id.as_u64().filter(|id| *id < blueprint.vocabulary).map(|id| id as usize);
        Ok(Some(token.with_context(|| format!("`{key}` of `{name}` is {id}, which is no token of the model"))?))
    };
    let yes = token("true_token_id")?.with_context(|| format!("`{name}` has no `true_token_id`"))?;
    Ok([Some(yes), token("false_token_id")?])
}

impl Activation {
    fn of(documents: Documents<'_>) -> Result<Self> {
        let json = |name: &str| documents.json(name).unwrap_or_default();
        let [own, config] = [json("config_sentence_transformers.json"), json("config.json")];
        let says = [
            &own["activation_fn"],
            &config["sentence_transformers"]["activation_fn"],
            &config["sbert_ce_default_activation_function"],
        ];
        // Names of other packages are passed over there, too.
        let name = says.into_iter().find_map(Value::as_str).filter(|name| name.starts_with("torch."));
        Ok(match name.and_then(|name| name.rsplit('.').next()) {
            None | Some("Sigmoid") => Self::Sigmoid,
            Some("Identity") => Self::Identity,
            Some("Tanh") => Self::Tanh,
            Some(other) => bail!("its scores go through `{other}`, expected Sigmoid, Identity or Tanh"),
        })
    }
}

impl Form {
    fn of(documents: Documents<'_>, header: Option<&Gguf<'_>>, text: &TextModel) -> Self {
        let templates = header.map(chat_templates::of_gguf).unwrap_or_default();
        if let Some((_, form)) = templates.into_iter().find(|(name, _)| name == "rerank") {
            return Self::Text(form);
        }
        let settings = documents.json("sentence_bert_config.json").unwrap_or_default();
        let renders = if settings["modality_config"].is_object() {
            settings["modality_config"].get("message").is_some()
        } else {
            // A folder that says nothing of pairs may have a template that does.
            let template = text.rendering.text();
            let names =
                |role: &str| ['"', '\''].iter().any(|quote| template.contains(&format!("{quote}{role}{quote}")));
            modules(documents).is_empty() && names("query") && names("document")
        };
        if !renders {
            return Self::Pair;
        }
        let variables = settings["processing_kwargs"]["chat_template"].as_object().cloned();
        Self::Conversation(variables.unwrap_or_default())
    }
}

impl Input {
    /// Its tokens.
    pub(crate) fn tokens(&self) -> &[u32] {
        match self {
            Self::Pair(pair) => &pair.tokens,
            Self::Rendered { tokens, .. } => tokens,
        }
    }

    /// Where tokens of the second type begin.
    pub(crate) fn second(&self) -> Option<usize> {
        match self {
            Self::Pair(pair) => pair.second,
            Self::Rendered { .. } => None,
        }
    }

    /// Drops what does not fit into `all` tokens; says how many tokens were dropped.
    pub(crate) fn truncate(&mut self, all: usize) -> usize {
        match self {
            Self::Pair(pair) => pair.truncate(all, usize::MAX),
            Self::Rendered { tokens, end } => {
                let dropped = tokens.len().saturating_sub(all);
                if dropped > 0 {
                    let end = (*end).min(all);
                    tokens.drain(all - end..tokens.len() - end);
                }
                dropped
            }
        }
    }
}
