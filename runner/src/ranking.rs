//! How a model ranks: what its documents say of pairs of texts, and of what makes a score of them.
//!
//! | document | what it says |
//! |---|---|
//! | the blueprint | whether there is a head that scores, and how many numbers it gives |
//! | `modules.json`, `…_LogitScore/config.json` | `true_token_id`, `false_token_id`: the logits after the prompt that make the score |
//! | `config_sentence_transformers.json`, `config.json` | `activation_fn`: what is done to the number; else sigmoid |
//! | `sentence_bert_config.json` | whether pairs are rendered by the chat template (`modality_config`), with which variables |
//! | `tokenizer_config.json` | `model_max_length`; whether the second text is of the second type (`model_input_names`) |
//! | GGUF | the template `rerank`, with `{query}` and `{document}` in it |
//!
//! Pairs that are rendered are messages of the roles `system` (the instruction), `query` and `document`; a folder that says nothing of
//! pairs has them rendered where its template has a place for both. Otherwise the instruction stands before the query. Special tokens
//! in texts are read as such where a template puts them together and by decoders, whose texts may come with their own marks; encoders
//! read them as text. Two numbers, as of `yes` and `no`, are one: their difference, whose sigmoid is the share of the first.
//!
//! Sources: `cross_encoder/model.py` and `modules/logit_score.py` of sentence-transformers 6; `build_pooling` and
//! `format_prompt_rerank` of llama.cpp.

use anyhow::{Context, Result, bail, ensure};
use architectures::{Blueprint, Score, ScorerInput};
use formats::Gguf;
use prompt::{Pair, PairForm, Special};
use protocol::{Message, Prompt, RenderRequest};
use serde_json::{Map, Value};
use vocabulary::chat_templates;

use crate::model::{Documents, TextModel};
use crate::sentence::modules;

/// Texts that no tokens have in common at their end: what is common to prompts with them follows a document.
const PROBES: [&str; 2] = ["0", "1 2 3 4"];
/// More than any model's texts: libraries write such a number where there is no limit.
const NO_LIMIT: u64 = 1 << 32;
/// Tokens of all documents of a request, at most.
const MOST_TOKENS: usize = 1 << 22;
/// The module of sentence-transformers that makes a score of logits.
const LOGIT_SCORE: &str = "LogitScore";

/// How a model ranks.
#[derive(Debug)]
pub(crate) struct Ranking {
    /// What gives numbers.
    pub(crate) judge: Judge,
    /// Which of them are the score.
    score: Score,
    activation: Activation,
    form: Form,
    /// The most tokens of a prompt.
    most: usize,
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
    /// As the tokenizer puts two texts together; special tokens in them may be read as such (`parse`).
    Pair { form: PairForm, parse: bool },
    /// As the chat template renders them, with these variables.
    Conversation(Map<String, Value>),
    /// Put into this text.
    Text(String),
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

impl Ranking {
    /// What a model's documents say.
    ///
    /// # Errors
    /// Why it cannot rank.
    pub(crate) fn of(documents: Documents<'_>, blueprint: &Blueprint, text: &TextModel) -> Result<Self> {
        check_modules(documents)?;
        let (judge, score) = match &blueprint.scorer {
            Some(scorer) => {
                let count = scorer.labels;
                let none = || format!("its head gives {count} numbers for a text, of which none is a score");
                (Judge::Head, scorer.score.with_context(none)?)
            }
            None => (Judge::Logits, of_logits(documents, blueprint)?),
        };
        let sees_last = blueprint.scorer.as_ref().is_none_or(|scorer| scorer.input == ScorerInput::Last);
        let padding = documents.json("config.json")?["pad_token_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let limit = documents.json("tokenizer_config.json")?["model_max_length"].as_u64();
        let own = documents.json("sentence_bert_config.json")?["max_seq_length"].as_u64();
        let most = own.or(limit.filter(|most| *most < NO_LIMIT)).filter(|most| *most > 0);
        Ok(Self {
            judge,
            score,
            activation: Activation::of(documents)?,
            form: Form::of(documents, blueprint, text)?,
            most: most.unwrap_or(u64::MAX).min(blueprint.context) as usize,
            padding: padding.filter(|_| sees_last && judge == Judge::Head),
            keeps_beginning: sees_last && blueprint.causal,
        })
    }

    /// The score that numbers make, of which there are as many as labels, or tokens; `raw` where nothing is to be done to it.
    pub(crate) fn score(&self, number: impl Fn(usize) -> f64, raw: bool) -> f64 {
        let score = number(self.score.yes as usize) - self.score.no.map_or(0.0, |no| number(no as usize));
        match self.activation {
            _ if raw => score,
            Activation::Identity => score,
            Activation::Sigmoid => 1.0 / (1.0 + (-score).exp()),
            Activation::Tanh => score.tanh(),
        }
    }

    /// The tokens of documents with their query; those of each come when they are asked for. `goes_on` says whether anybody waits.
    ///
    /// # Errors
    /// What the tokenizer or the template says, an instruction for which there is no place, more tokens than there may be.
    pub(crate) fn inputs(&self, asked: &Asked<'_>, documents: &[String], goes_on: impl Fn() -> bool) -> Result<Inputs> {
        let mut inputs = Inputs {
            pair: None,
            documents: Vec::with_capacity(documents.len()),
            end: 0,
            most: self.most,
            padding: self.padding,
            dropped: 0,
        };
        match &self.form {
            Form::Pair { form, parse } => {
                let query = asked.tokens(&[asked.instruction, asked.query].concat(), *parse)?;
                inputs.pair = Some((form.clone(), query));
            }
            Form::Conversation(_) | Form::Text(_) => inputs.end = self.form.end(asked)?,
        }
        let mut count = 0;
        for document in documents {
            ensure!(goes_on(), "nobody waits for the scores any more");
            let (tokens, dropped) = match &self.form {
                Form::Pair { parse, .. } => asked.document(document, *parse)?,
                form => form.rendered_document(asked, document)?,
            };
            count += tokens.len();
            ensure!(count <= MOST_TOKENS, "the documents make more than {MOST_TOKENS} tokens; send them in parts");
            inputs.dropped += dropped;
            inputs.documents.push(tokens);
        }
        Ok(inputs)
    }
}

impl Asked<'_> {
    fn tokens(&self, text: &str, parse: bool) -> Result<Vec<u32>> {
        let special = Special { add: false, parse };
        if self.lowers {
            return Ok(self.text.tokenizer.encode(&text.to_lowercase(), special)?);
        }
        Ok(self.text.tokenizer.encode(text, special)?)
    }

    /// The tokens of a document, as many as it may have, and how many were dropped.
    fn document(&self, document: &str, parse: bool) -> Result<(Vec<u32>, usize)> {
        let mut tokens = self.tokens(document, parse)?;
        let dropped = tokens.len().saturating_sub(self.most.unwrap_or(usize::MAX));
        tokens.truncate(tokens.len() - dropped);
        Ok((tokens, dropped))
    }
}

impl Form {
    fn of(documents: Documents<'_>, blueprint: &Blueprint, text: &TextModel) -> Result<Self> {
        let header = documents.iter().find_map(|(_, bytes)| Gguf::parse_header(bytes).ok());
        let templates = header.as_ref().map(chat_templates::of_gguf).unwrap_or_default();
        if let Some((_, form)) = templates.into_iter().find(|(name, _)| name == "rerank") {
            return Ok(Self::Text(form));
        }
        let settings = documents.json("sentence_bert_config.json")?;
        let variables = settings["processing_kwargs"]["chat_template"].as_object().cloned();
        let conversation = Self::Conversation(variables.unwrap_or_default());
        let renders = if settings["modality_config"].is_object() {
            settings["modality_config"].get("message").is_some()
        } else {
            // A folder that says nothing of pairs may have a template that does.
            let asked = Asked { text, query: PROBES[0], instruction: "", lowers: false, most: None };
            let has_template = text.rendering.has_template(&RenderRequest::default());
            has_template && modules(documents)?.is_empty() && conversation.end(&asked).is_ok()
        };
        if renders {
            return Ok(conversation);
        }
        let form = text.tokenizer.pair_form()?;
        let has_types = header.is_some() || gives_types(&documents.json("tokenizer_config.json")?);
        Ok(Self::Pair { form: if has_types { form } else { form.of_one_type() }, parse: blueprint.causal })
    }

    /// How many tokens follow a document, where it is put into a longer text.
    ///
    /// # Errors
    /// What the template says, or that it has no place for a query or a document.
    fn end(&self, asked: &Asked<'_>) -> Result<usize> {
        let [one, other] = PROBES.map(|probe| self.rendered(asked, probe));
        let (one, other) = (one?, other?);
        let query = [asked.query, PROBES[1]].concat();
        let of_query = self.rendered(&Asked { query: &query, ..*asked }, PROBES[0])?;
        ensure!(one != other && one != of_query, "its template has no place for both a query and a document");
        Ok(one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count())
    }

    /// The tokens of a document with its query, and how many of the document's were dropped.
    fn rendered_document(&self, asked: &Asked<'_>, document: &str) -> Result<(Vec<u32>, usize)> {
        if asked.most.is_none() {
            return Ok((self.rendered(asked, document)?, 0));
        }
        let (tokens, dropped) = asked.document(document, false)?;
        if dropped == 0 {
            return Ok((self.rendered(asked, document)?, 0));
        }
        // The last token may have ended within a character.
        let begins = asked.text.tokenizer.decode(&tokens, true)?;
        Ok((self.rendered(asked, begins.trim_end_matches('\u{fffd}'))?, dropped))
    }

    fn rendered(&self, asked: &Asked<'_>, document: &str) -> Result<Vec<u32>> {
        let variables = match self {
            Self::Text(form) => {
                ensure!(asked.instruction.is_empty(), "its template has no place for an instruction");
                return asked.text.rendered(&filled(form, asked.query, document)?, false);
            }
            Self::Conversation(variables) => variables.clone(),
            Self::Pair { .. } => Map::new(),
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

/// Puts a query and a document into a text, whatever stands in them.
fn filled(form: &str, query: &str, document: &str) -> Result<String> {
    let places = |name: &str, text: &str| form.matches(name).count().saturating_mul(text.len());
    let length = form.len().saturating_add(places("{query}", query)).saturating_add(places("{document}", document));
    ensure!(length <= prompt::MAX_TEXT, prompt::Error::TooLong(length));
    let parts = form.split("{query}").map(|part| part.split("{document}").collect::<Vec<_>>().join(document));
    Ok(parts.collect::<Vec<_>>().join(query))
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
    let unknown = modules(documents)?.into_iter().find(|module| !["Transformer", LOGIT_SCORE].contains(&module.name()));
    match unknown {
        Some(module) => bail!("its module `{}` ({}) gives no scores here", module.path, module.kind),
        None => Ok(()),
    }
}

/// The tokens whose logits are the score, and what is taken from it.
fn of_logits(documents: Documents<'_>, blueprint: &Blueprint) -> Result<Score> {
    let module = modules(documents)?.into_iter().find(|module| module.name() == LOGIT_SCORE);
    let module = module.context("it has neither a head that scores texts nor a module `LogitScore`")?;
    ensure!(blueprint.output.is_some(), "its module `LogitScore` needs logits, which the model does not give");
    let name = format!("{}/config.json", module.path);
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

/// Documents with their query, as tokens.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// What stands around two texts, and the query; none where each document came with it.
    pair: Option<(PairForm, Vec<u32>)>,
    documents: Vec<Vec<u32>>,
    /// How many of the last tokens follow a document.
    end: usize,
    most: usize,
    padding: Option<u32>,
    /// Tokens of documents that were dropped because they had more than they may.
    pub(crate) dropped: usize,
}

impl Inputs {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.documents.len()
    }

    /// The tokens of a document with its query, at most so many where there is room for what stands around them, and how many did not
    /// fit.
    pub(crate) fn get(&self, index: usize, context: usize) -> (Pair, usize) {
        let (document, all) = (&self.documents[index], self.most.min(context));
        let Some((form, query)) = &self.pair else {
            let dropped = document.len().saturating_sub(all);
            let end = self.end.min(all);
            let tokens = match dropped {
                0 => document.clone(),
                _ => [&document[..all - end], &document[document.len() - end..]].concat(),
            };
            return (self.trimmed(Pair { tokens, second: None }), dropped);
        };
        let left = form.left([query.len(), document.len()], all);
        let dropped = query.len() + document.len() - left[0] - left[1];
        (self.trimmed(form.join(&query[..left[0]], &document[..left[1]])), dropped)
    }

    /// Without what fills up at the end.
    fn trimmed(&self, mut pair: Pair) -> Pair {
        while self.padding.is_some() && pair.tokens.len() > 1 && pair.tokens.last().copied() == self.padding {
            pair.tokens.pop();
        }
        pair
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_filled_in_whatever_stands_in_them() {
        let form = "<Q> {query} <D> {document} {query}";
        assert_eq!(filled(form, "{document}", "{query}").expect("a text"), "<Q> {document} <D> {query} {document}");
        let long = filled(&"{document}".repeat(1 << 10), "", &"x".repeat(1 << 12)).expect_err("too long");
        assert!(long.to_string().contains("4204544 bytes") || long.to_string().contains("bytes"), "{long}");
    }

    #[test]
    fn what_follows_a_document_stays() {
        let inputs = |documents: &[&[u32]], end| Inputs {
            pair: None,
            documents: documents.iter().map(|tokens| tokens.to_vec()).collect(),
            end,
            most: 9,
            padding: None,
            dropped: 0,
        };
        let get = |tokens: &[u32], end, context| {
            let (pair, dropped) = inputs(&[tokens], end).get(0, context);
            (pair.tokens, dropped)
        };
        assert_eq!(get(&[1, 2, 3, 8, 9], 2, 4), (vec![1, 2, 8, 9], 1));
        assert_eq!(get(&[1, 2, 3, 8, 9], 2, 5), (vec![1, 2, 3, 8, 9], 0));
        assert_eq!(get(&[1, 2, 3, 8, 9], 2, 1), (vec![9], 4));
        let filled = Inputs { padding: Some(9), ..inputs(&[&[1, 9, 2, 9, 9]], 0) };
        assert_eq!(filled.get(0, 9).0.tokens, [1, 9, 2]);
    }

    #[test]
    fn classes_of_no_family_give_no_types() {
        for (config, expect) in [
            (serde_json::json!({"tokenizer_class": "BertTokenizer"}), true),
            (serde_json::json!({}), true),
            (serde_json::json!({"tokenizer_class": "PreTrainedTokenizerFast"}), false),
            (serde_json::json!({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}), false),
            (
                serde_json::json!({"tokenizer_class": "TokenizersBackend", "model_input_names": ["token_type_ids"]}),
                true,
            ),
        ] {
            assert_eq!(gives_types(&config), expect, "{config}");
        }
    }
}
