//! Reader of a `tokenizer.json`: its model, its added tokens, and the steps before and after the
//! model.

use serde_json::Value as Json;

use import::Error;

/// Tokenizer of the `tokenizers` library.
pub(super) struct TokenizerJson {
    root: Json,
    /// Tokens that are matched in text before any other step.
    pub(super) added: Vec<AddedToken>,
}

/// Token that is matched in text before any other step.
pub(super) struct AddedToken {
    /// Token id.
    pub(super) id: u64,
    /// Text of the token.
    pub(super) content: String,
    /// Whether the token is a control token, such as a start, an end or a separator, and not text.
    pub(super) special: bool,
}

/// Tokens that the tokenizer puts around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    /// Texts of the tokens before the text.
    pub(super) before: Vec<String>,
    /// Texts of the tokens after the text.
    pub(super) after: Vec<String>,
}

impl TokenizerJson {
    pub(super) fn new(root: Json) -> Result<Self, Error> {
        let added = root.get("added_tokens").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        let added = added.iter().map(added_token).collect::<Option<Vec<_>>>();
        let added = added.ok_or_else(|| fail("an added token has no `id` or no `content`"))?;
        Ok(Self { root, added })
    }

    /// Returns a field of the model.
    pub(super) fn model(&self, key: &str) -> Option<&Json> {
        self.root.get("model")?.get(key)
    }

    /// Returns the model type: `BPE`, `Unigram`, …; older files do not name BPE.
    pub(super) fn kind(&self) -> &str {
        self.model("type").and_then(Json::as_str).unwrap_or(if self.model("merges").is_some() { "BPE" } else { "" })
    }

    /// Returns a boolean field of the model; false if missing.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.model(key).and_then(Json::as_bool).unwrap_or(false)
    }

    /// Returns the steps of a stage (`normalizer`, `pre_tokenizer`, `post_processor`, `decoder`),
    /// with sequences flattened.
    pub(super) fn steps(&self, stage: &str) -> Vec<&Json> {
        let mut steps = Vec::new();
        if let Some(stage) = self.root.get(stage).filter(|stage| !stage.is_null()) {
            flatten(stage, &mut steps);
        }
        steps
    }

    /// Returns the tokens that are put around a text; `None` if the file has no template.
    pub(super) fn around(&self) -> Option<Around> {
        let steps = self.steps("post_processor");
        let template = steps.into_iter().find(|step| kind(step) == "TemplateProcessing")?;
        let mut around = Around::default();
        let mut text_seen = false;
        for item in template.get("single")?.as_array()? {
            if item.get("Sequence").is_some() {
                text_seen = true;
            } else if let Some(text) = item.get("SpecialToken").and_then(|token| token.get("id")?.as_str()) {
                let side = if text_seen { &mut around.after } else { &mut around.before };
                side.push(text.to_owned());
            }
        }
        Some(around)
    }

    /// Returns the id of the token with this text.
    pub(super) fn id(&self, text: &str) -> Option<u64> {
        let added = self.added.iter().find(|token| token.content == text).map(|token| token.id);
        added.or_else(|| match self.model("vocab")? {
            Json::Object(vocabulary) => vocabulary.get(text)?.as_u64(),
            Json::Array(pieces) => pieces.iter().position(|piece| piece[0] == text).map(|id| id as u64),
            _ => None,
        })
    }
}

/// Returns the type of a step.
pub(super) fn kind(step: &Json) -> &str {
    step.get("type").and_then(Json::as_str).unwrap_or_default()
}

fn flatten<'a>(stage: &'a Json, out: &mut Vec<&'a Json>) {
    let inner = ["pretokenizers", "normalizers", "processors", "decoders"].iter().find_map(|key| stage.get(key));
    match inner.and_then(Json::as_array) {
        Some(inner) if kind(stage) == "Sequence" => inner.iter().for_each(|step| flatten(step, out)),
        _ => out.push(stage),
    }
}

fn added_token(json: &Json) -> Option<AddedToken> {
    Some(AddedToken {
        id: json.get("id")?.as_u64()?,
        content: json.get("content")?.as_str()?.to_owned(),
        special: json.get("special").and_then(Json::as_bool).unwrap_or(false),
    })
}

pub(super) fn fail(reason: impl std::fmt::Display) -> Error {
    crate::refused("tokenizer.json", reason)
}
