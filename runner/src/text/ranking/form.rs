//! How a query and a document become tokens, and which documents specify it:
//!
//! - `sentence_bert_config.json`: whether the chat template renders pairs (`modality_config`), and
//!   with which variables.
//! - `tokenizer_config.json`: whether the second text has the second token type
//!   (`model_input_names`).
//! - GGUF: the template `rerank`, with the placeholders `{query}` and `{document}`.
//!
//! Rendered pairs are messages with the roles `system` (the instruction), `query` and `document`.
//! If a folder has no settings for pairs, its chat template renders them if it has a place for both
//! texts. Otherwise the instruction precedes the query. Special tokens in texts are parsed if a
//! template combines the texts, and by decoders, whose texts may contain their own marks. Encoders
//! treat them as text.
//!
//! Sources: `base/modality.py` and `base/modules/transformer.py` of sentence-transformers 6;
//! `format_prompt_rerank` of llama.cpp.

use anyhow::{Result, ensure};
use architectures::Blueprint;
use formats::Gguf;
use prompt::{PairForm, Special};
use protocol::{Message, Prompt, RenderRequest};
use serde_json::{Map, Value};
use vocabulary::chat_templates;

use crate::documents::Documents;
use crate::text::sentence::modules;
use crate::text::text_model::TextModel;

/// Texts whose tokens have no common suffix: the common suffix of prompts with them is what follows
/// a document.
const PROBES: [&str; 2] = ["0", "1 2 3 4"];

/// How a pair of texts becomes tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The tokenizer combines the two texts; `parse` means that special tokens in them are parsed.
    Pair { form: PairForm, parse: bool },
    /// A template inserts the two texts into a longer one.
    Rendered(Template),
}

/// A template that combines two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Template {
    /// The chat template, with these variables.
    Conversation(Map<String, Value>),
    /// A text with placeholders.
    Text(String),
}

/// The query that documents are compared with, and options for their tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// Converts texts to tokens.
    pub(crate) text: &'a TextModel,
    pub(crate) query: &'a str,
    /// Describes which documents count as an answer; may be empty.
    pub(crate) instruction: &'a str,
    /// Whether texts are converted to lower case.
    pub(crate) lowers: bool,
    /// Largest number of tokens of a document.
    pub(crate) most: Option<usize>,
}

impl Asked<'_> {
    pub(super) fn tokens(&self, text: &str, parse: bool) -> Result<Vec<u32>> {
        let special = Special { add: false, parse };
        if self.lowers {
            return Ok(self.text.tokenizer.encode(&text.to_lowercase(), special)?);
        }
        Ok(self.text.tokenizer.encode(text, special)?)
    }

    /// Returns the tokens of a document, up to the largest number, and how many were dropped.
    pub(super) fn document(&self, document: &str, parse: bool) -> Result<(Vec<u32>, usize)> {
        let mut tokens = self.tokens(document, parse)?;
        let dropped = tokens.len().saturating_sub(self.most.unwrap_or(usize::MAX));
        tokens.truncate(tokens.len() - dropped);
        Ok((tokens, dropped))
    }
}

impl Form {
    /// Reads the settings from a model's documents.
    ///
    /// # Errors
    /// Fails if documents are not JSON, or the tokenizer cannot combine two texts.
    pub(super) fn of(documents: Documents<'_>, blueprint: &Blueprint, text: &TextModel) -> Result<Self> {
        let header = documents.iter().find_map(|(_, bytes)| Gguf::parse_header(bytes).ok());
        let templates = header.as_ref().map(chat_templates::of_gguf).unwrap_or_default();
        if let Some((_, form)) = templates.into_iter().find(|(name, _)| name == "rerank") {
            return Ok(Self::Rendered(Template::Text(form)));
        }
        let settings = documents.json("sentence_bert_config.json")?;
        let variables = settings["processing_kwargs"]["chat_template"].as_object().cloned();
        let conversation = Template::Conversation(variables.unwrap_or_default());
        let renders = if settings["modality_config"].is_object() {
            settings["modality_config"].get("message").is_some()
        } else {
            // A folder without settings for pairs may have a template that supports them.
            let asked = Asked { text, query: PROBES[0], instruction: "", lowers: false, most: None };
            let has_template = text.rendering.has_template(&RenderRequest::default());
            has_template && modules(documents)?.is_empty() && conversation.end(&asked).is_ok()
        };
        if renders {
            return Ok(Self::Rendered(conversation));
        }
        let form = text.tokenizer.pair_form()?;
        let has_types = header.is_some() || gives_types(&documents.json("tokenizer_config.json")?);
        Ok(Self::Pair { form: if has_types { form } else { form.of_one_type() }, parse: blueprint.causal })
    }
}

impl Template {
    /// Returns how many tokens follow a document that the template inserts into a longer text.
    ///
    /// # Errors
    /// Fails if the template fails, or if it has no place for a query or a document.
    pub(super) fn end(&self, asked: &Asked<'_>) -> Result<usize> {
        let [one, other] = PROBES.map(|probe| self.rendered(asked, probe));
        let (one, other) = (one?, other?);
        let query = [asked.query, PROBES[1]].concat();
        let of_query = self.rendered(&Asked { query: &query, ..*asked }, PROBES[0])?;
        ensure!(
            one != other && one != of_query,
            "its template has no place for both a query and a document; expected one for messages of the roles `query` and `document`, or \
             `{{query}}` and `{{document}}` in the template `rerank`"
        );
        Ok(one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count())
    }

    /// Returns the tokens of a document with its query, and how many of the document's tokens were
    /// dropped.
    pub(super) fn document(&self, asked: &Asked<'_>, document: &str) -> Result<(Vec<u32>, usize)> {
        if asked.most.is_none() {
            return Ok((self.rendered(asked, document)?, 0));
        }
        let (tokens, dropped) = asked.document(document, false)?;
        if dropped == 0 {
            return Ok((self.rendered(asked, document)?, 0));
        }
        // The last token may end within a character.
        let begins = asked.text.tokenizer.decode(&tokens, true)?;
        Ok((self.rendered(asked, begins.trim_end_matches('\u{fffd}'))?, dropped))
    }

    fn rendered(&self, asked: &Asked<'_>, document: &str) -> Result<Vec<u32>> {
        let variables = match self {
            Self::Text(form) => {
                ensure!(
                    asked.instruction.is_empty(),
                    "its template has no place for an instruction; leave `instruction` out"
                );
                return asked.text.rendered(&filled(form, asked.query, document)?, false);
            }
            Self::Conversation(variables) => variables.clone(),
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

/// Inserts a query and a document into a text. Placeholders within them are not replaced.
fn filled(form: &str, query: &str, document: &str) -> Result<String> {
    let places = |name: &str, text: &str| form.matches(name).count().saturating_mul(text.len());
    let length = form.len().saturating_add(places("{query}", query)).saturating_add(places("{document}", document));
    ensure!(length <= prompt::MAX_TEXT, prompt::Error::TooLong(length));
    let parts = form.split("{query}").map(|part| part.split("{document}").collect::<Vec<_>>().join(document));
    Ok(parts.collect::<Vec<_>>().join(query))
}

/// Whether a tokenizer of transformers gives a model the types of tokens. Classes that belong to no
/// family do so only if `model_input_names` requests it (`tokenization_utils_base.py`, version 5).
fn gives_types(config: &Value) -> bool {
    match config["model_input_names"].as_array() {
        Some(names) => names.iter().any(|name| name == "token_type_ids"),
        None => !matches!(config["tokenizer_class"].as_str(), Some("PreTrainedTokenizerFast" | "TokenizersBackend")),
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
        assert!(long.to_string().contains("4204544 bytes"), "{long}");
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
