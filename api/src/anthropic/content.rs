//! Message content: a string or a list of blocks.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Refusal;
use crate::pictures::is_remote;

/// A string or blocks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected content that is a string or a list of blocks")]
#[schemars(rename = "AnthropicContent")]
pub(super) enum Content {
    /// Shorthand for one text block.
    Text(String),
    /// Blocks, in order.
    Blocks(Vec<Block>),
}

/// A content block of any type, with the union of their fields.
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
    url: Option<String>,
}

/// The role of a block in a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    /// Text.
    Text(String),
    /// A picture, as base64.
    Picture(String),
    /// Reasoning of the model.
    Thinking(String),
    /// A tool call, in the form that templates expect.
    Call { id: String, name: String, call: Value },
    /// The result of a tool.
    Result { id: String, content: Vec<Piece> },
    /// Content that a model here cannot read.
    Nothing,
}

impl Content {
    /// Converts the content to pieces. `param` is the path of the field, for errors.
    pub(super) fn pieces(self, param: &str) -> Result<Vec<Piece>, Refusal> {
        match self {
            Self::Text(text) => Ok(vec![Piece::Text(text)]),
            Self::Blocks(blocks) => {
                let piece = |(at, block): (usize, Block)| block.piece(&format!("{param}.{at}"));
                blocks.into_iter().enumerate().map(piece).collect()
            }
        }
    }

    /// Returns all text, joined by line breaks. Refuses any other kind of block.
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
            // `redacted_thinking` is encrypted for Anthropic's servers. The rest are calls of tools
            // that ran there, and their results.
            "redacted_thinking" | "server_tool_use" | "web_search_tool_result" | "web_fetch_tool_result" => {
                Ok(Piece::Nothing)
            }
            "tool_use" => self.call(param),
            "tool_result" => self.result(param),
            "document" => match self.source {
                Some(Source { kind, data: Some(text), .. }) if kind == "text" => Ok(Piece::Text(text)),
                _ => Err(Refusal::new(format!("{param}.source"), "this model reads documents of plain text only")),
            },
            "image" => match self.source {
                Some(Source { kind, data: Some(file), .. }) if kind == "base64" => Ok(Piece::Picture(file)),
                Some(Source { kind, url: Some(url), .. }) if kind == "url" && is_remote(&url) => {
                    Ok(Piece::Picture(url))
                }
                Some(Source { kind, .. }) if kind == "url" || kind == "file" => Err(Refusal::new(
                    format!("{param}.source"),
                    "such pictures are not fetched; send the picture itself, as base64",
                )),
                _ => Err(Refusal::new(format!("{param}.source"), "a picture needs a source of the type base64")),
            },
            other => Err(Refusal::new(
                format!("{param}.type"),
                format!(
                    "blocks of type `{other}` are not supported; expected text, image, thinking, tool_use or tool_result"
                ),
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
        let content = self.content.map(|content| content.pieces(&format!("{param}.content"))).transpose()?;
        let mut content = content.unwrap_or_default();
        if content.iter().any(|piece| !matches!(piece, Piece::Text(_) | Piece::Picture(_))) {
            return Err(Refusal::new(format!("{param}.content"), "only blocks of text and images can be here"));
        }
        if self.is_error.unwrap_or(false) {
            // Templates have no field for failed tool calls, so the error goes into the text.
            match content.first_mut() {
                Some(Piece::Text(text)) => *text = format!("error: {text}"),
                _ => content.insert(0, Piece::Text("error: ".to_owned())),
            }
        }
        Ok(Piece::Result { id: self.tool_use_id, content })
    }
}
