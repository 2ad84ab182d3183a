//! A file's vocabulary: texts, what they are for, and what merging needs.

use super::fail;
use crate::Error;
use crate::gguf::{Gguf, Value};

/// Texts that begin or end a turn. Some published files give these the type of text.
pub(super) const ENDS: [&str; 8] =
    ["<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|eom_id|>", "<|end|>", "<EOT>"];
const BEGINS: [&str; 4] = ["<|im_start|>", "<|start_header_id|>", "<|begin_of_text|>", "<start_of_turn>"];

/// What a token is for; `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// An entry; its number is its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) kind: Kind,
    /// 0 where the file has no scores.
    pub(super) score: f32,
}

/// How text is cut.
#[derive(Debug)]
pub(super) enum Model<'a> {
    /// Byte-level BPE: how text is split before, and pairs separated by a space.
    ByteLevel { pre: &'a str, merges: Vec<&'a str> },
    /// Merging by scores.
    SentencePiece { add_space_prefix: bool },
    /// Another one, by its name.
    Other(&'a str),
}

#[derive(Debug)]
pub(super) struct Vocabulary<'a> {
    pub(super) model: Model<'a>,
    pub(super) tokens: Vec<Token<'a>>,
}

impl<'a> Vocabulary<'a> {
    /// Reads it; none where the file has none.
    ///
    /// # Errors
    /// Lists of different lengths, tokens that are not UTF-8, a file without the lists that its model needs.
    pub(super) fn read(gguf: &Gguf<'a>) -> Result<Option<Self>, Error> {
        let Some(texts) = gguf.array("tokenizer.ggml.tokens") else { return Ok(None) };
        let mut tokens = Vec::new();
        for (id, text) in texts.iter().enumerate() {
            let text = text.as_str().ok_or_else(|| fail(format!("token {id} is not UTF-8; JSON cannot have it")))?;
            tokens.push(Token { text, kind: Kind::Normal, score: 0.0 });
        }
        if let Some(kinds) = list(gguf, "token_type", tokens.len())? {
            for (token, kind) in tokens.iter_mut().zip(kinds) {
                token.kind = kind_of(&kind);
            }
        }
        for token in tokens.iter_mut().filter(|token| ENDS.contains(&token.text) || BEGINS.contains(&token.text)) {
            token.kind = Kind::Control;
        }
        let flag = |key: &str| gguf.flag(&format!("tokenizer.ggml.{key}"));
        let model = match gguf.text("tokenizer.ggml.model").unwrap_or_default() {
            "gpt2" => {
                let merges = gguf.array("tokenizer.ggml.merges");
                let merges = merges.ok_or_else(|| fail("there is no `tokenizer.ggml.merges`"))?;
                let text = |merge: Value<'a>| merge.as_str().ok_or_else(|| fail("a merge is not UTF-8 text"));
                let merges = merges.iter().map(text).collect::<Result<_, _>>()?;
                Model::ByteLevel { pre: gguf.text("tokenizer.ggml.pre").unwrap_or_default(), merges }
            }
            "llama" => {
                let scores = list(gguf, "scores", tokens.len())?;
                let scores = scores.ok_or_else(|| fail("there is no `tokenizer.ggml.scores`"))?;
                for (token, score) in tokens.iter_mut().zip(scores) {
                    token.score = score.as_f64().unwrap_or(0.0) as f32;
                }
                Model::SentencePiece { add_space_prefix: flag("add_space_prefix").unwrap_or(true) }
            }
            other => Model::Other(other),
        };
        Ok(Some(Self { model, tokens }))
    }
}

/// A list with an item for each token.
fn list<'a>(gguf: &Gguf<'a>, key: &str, tokens: usize) -> Result<Option<impl Iterator<Item = Value<'a>>>, Error> {
    let Some(list) = gguf.array(&format!("tokenizer.ggml.{key}")) else { return Ok(None) };
    if list.len() != tokens as u64 {
        return Err(fail(format!("`tokenizer.ggml.{key}` has {} items for {tokens} tokens", list.len())));
    }
    Ok(Some(list.iter()))
}

fn kind_of(value: &Value<'_>) -> Kind {
    match value.as_u64() {
        Some(2) => Kind::Unknown,
        Some(3) => Kind::Control,
        Some(4) => Kind::UserDefined,
        Some(5) => Kind::Unused,
        Some(6) => Kind::Byte,
        _ => Kind::Normal,
    }
}
