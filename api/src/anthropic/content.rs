//! Content of messages: a string, or blocks.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Refusal;

/// A string or blocks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected content that is a string or a list of blocks")]
#[schemars(rename = "AnthropicContent")]
pub(super) enum Content {
    /// One block of text.
    Text(String),
    /// In order.
    Blocks(Vec<Block>),
}

/// A block of any type: the fields of all of them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AnthropicInputBlock")]
pub(super) struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: String,
    id: String,
    name: String,
    input: Option<Value>,
    tool_use_id: String,
    content: Option<Content>,
    is_error: Option<bool>,
    source: Option<Source>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AnthropicSource")]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    data: Option<String>,
}

/// What a block is to a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    /// Said.
    Text(String),
    /// Thought.
    Thinking(String),
    /// A call of a tool, as templates want it.
    Call { id: String, name: String, call: Value },
    /// What a tool has said.
    Result { id: String, text: String },
    /// Nothing that a model here can read.
    Nothing,
}

impl Content {
    /// The pieces. `param` is the field's path.
    pub(super) fn pieces(self, param: &str) -> Result<Vec<Piece>, Refusal> {
        match self {
            Self::Text(text) => Ok(vec![Piece::Text(text)]),
            Self::Blocks(blocks) => {
                let piece = |(at, block): (usize, Block)| block.piece(&format!("{param}.{at}"));
                blocks.into_iter().enumerate().map(piece).collect()
            }
        }
    }

    /// All as text, joined by line breaks; anything else is refused.
    pub(super) fn text(self, param: &str) -> Result<String, Refusal> {
        let text = |piece| match piece {
            Piece::Text(text) => Ok(text),
            _ => Err(Refusal::new(param, "only blocks of text can be here")),
        };
        let texts: Result<Vec<String>, Refusal> = self.pieces(param)?.into_iter().map(text).collect();
        Ok(texts?.join("\n"))
    }
}

impl Block {
    fn piece(self, param: &str) -> Result<Piece, Refusal> {
        match self.kind.as_str() {
            "text" => match self.text {
                Some(text) => Ok(Piece::Text(text)),
                None => Err(Refusal::new(format!("{param}.text"), "a block of text needs it")),
            },
            "thinking" => Ok(Piece::Thinking(self.thinking)),
            // Thoughts that only another server can read; a tool that ran on Anthropic's servers, and its result.
            "redacted_thinking" | "server_tool_use" | "web_search_tool_result" | "web_fetch_tool_result" => {
                Ok(Piece::Nothing)
            }
            "tool_use" => self.call(param),
            "tool_result" => self.result(param),
            "document" => match self.source {
                Some(Source { kind, data: Some(text) }) if kind == "text" => Ok(Piece::Text(text)),
                _ => Err(Refusal::new(format!("{param}.source"), "this model reads documents of plain text only")),
            },
            "image" => Err(Refusal::new(param, "this model does not support images")),
            other => Err(Refusal::new(
                format!("{param}.type"),
                format!("blocks of type `{other}` are not supported; expected text, thinking, tool_use or tool_result"),
            )),
        }
    }

    fn call(self, param: &str) -> Result<Piece, Refusal> {
        if self.name.is_empty() {
            return Err(Refusal::new(format!("{param}.name"), "a call needs the name of the tool"));
        }
        let arguments = match self.input {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(input)) => input,
            Some(other) => {
                return Err(Refusal::new(
                    format!("{param}.input"),
                    format!("the input is {other}, expected an object"),
                ));
            }
        };
        let function = json!({"name": self.name, "arguments": arguments});
        let call = json!({"id": self.id, "type": "function", "function": function});
        Ok(Piece::Call { id: self.id, name: self.name, call })
    }

    fn result(self, param: &str) -> Result<Piece, Refusal> {
        let text = self.content.map(|content| content.text(&format!("{param}.content"))).transpose()?;
        let text = text.unwrap_or_default();
        let failed = self.is_error.unwrap_or(false);
        // Templates have no word for it, the model is told in words.
        let text = if failed { format!("error: {text}") } else { text };
        Ok(Piece::Result { id: self.tool_use_id, text })
    }
}
