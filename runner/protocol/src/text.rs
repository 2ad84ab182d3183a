//! Text, tokens and messages.

use serde::{Deserialize, Serialize};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message; empty if there is none, as in a message that only calls a tool.
    #[serde(default, deserialize_with = "text_or_null")]
    pub content: String,
    /// All other fields that a template can read: `tool_calls`, `name`, ….
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Boundary of a picture's mark: the character that stands for objects in text.
pub const PICTURE_MARK: char = '\u{FFFC}';

/// Returns the text that stands for a picture in a prompt: in the content of a message, or in raw
/// text. `index` is the place of the picture in
/// [`GenerateRequest::pictures`](crate::GenerateRequest::pictures).
pub fn picture_mark(index: usize) -> String {
    format!("{PICTURE_MARK}{index}{PICTURE_MARK}")
}

/// Part of a text with pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPart<'a> {
    /// Text without pictures.
    Text(&'a str),
    /// The mark of the picture with this index.
    Picture(usize),
}

/// Splits a text at the marks of `count` pictures. Text that only looks like a mark stays text.
/// Text parts are not empty.
///
/// # Examples
///
/// ```
/// use lode_runner_protocol::{TextPart, picture_mark, text_parts};
///
/// let text = format!("What is this? {}", picture_mark(0));
/// let parts: Vec<TextPart> = text_parts(&text, 1);
/// assert_eq!(parts, [TextPart::Text("What is this? "), TextPart::Picture(0)]);
/// ```
pub fn text_parts(text: &str, count: usize) -> Vec<TextPart<'_>> {
    let mut parts = Vec::new();
    let (mut rest, mut from) = (text, 0);
    while let Some(begin) = rest[from..].find(PICTURE_MARK).map(|at| from + at) {
        let behind = begin + PICTURE_MARK.len_utf8();
        let index = rest[behind..].split_once(PICTURE_MARK).and_then(|(number, _)| {
            let index: usize = number.parse().ok()?;
            (index < count && number == index.to_string())
                .then_some((index, behind + number.len() + PICTURE_MARK.len_utf8()))
        });
        let Some((index, end)) = index else {
            from = behind;
            continue;
        };
        parts.extend((begin > 0).then(|| TextPart::Text(&rest[..begin])));
        parts.push(TextPart::Picture(index));
        (rest, from) = (&rest[end..], 0);
    }
    parts.extend((!rest.is_empty()).then_some(TextPart::Text(rest)));
    parts
}

/// Request to tokenize a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeRequest {
    /// The text.
    pub text: String,
    /// If true, the tokens that the model expects around a text are added, such as BOS.
    #[serde(default)]
    pub add_special: bool,
    /// If true, special tokens in the text are parsed as such; if false, they are plain text.
    #[serde(default)]
    pub parse_special: bool,
}

/// Number of tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCount {
    /// The number, including the tokens that a generation puts before the prompt.
    pub tokens: u64,
}

/// Token ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// The ids, in order.
    pub tokens: Vec<u32>,
}

/// Text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The text.
    pub text: String,
}

/// Request to render a conversation with the chat template.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RenderRequest {
    /// The messages of the conversation.
    pub messages: Vec<Message>,
    /// Tool definitions, in the form that the template expects.
    pub tools: Option<serde_json::Value>,
    /// If true, the text ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// If true, and the answer begins after an assistant's message, the answer continues that
    /// message.
    pub continue_final_message: bool,
    /// Template to use in place of the model's own.
    pub template: Option<String>,
    /// Additional template variables, e.g. `enable_thinking`.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// Documents that the answer is to be based on, in the form that the template expects.
    pub documents: Option<serde_json::Value>,
    /// Text after the gap, for fill-in-the-middle; the last message is the text before the gap.
    pub suffix: Option<String>,
    /// Local time of the client, in RFC 3339 format.
    pub now: Option<String>,
    /// Number of pictures whose marks become parts of the type `image` in the content of messages.
    /// 0 means that all contents are text.
    #[serde(skip_serializing_if = "is_zero")]
    pub typed_pictures: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_are_pictures() {
        let (first, second) = (picture_mark(0), picture_mark(1));
        let text = format!("a{second}{first}b");
        let parts = [TextPart::Text("a"), TextPart::Picture(1), TextPart::Picture(0), TextPart::Text("b")];
        assert_eq!(text_parts(&text, 2), parts);
        assert_eq!(text_parts(&text, 0), [TextPart::Text(&text)]);
        for plain in ["", "x", "\u{FFFC}", "\u{FFFC}7\u{FFFC}", "\u{FFFC}00\u{FFFC}", "\u{FFFC}+1\u{FFFC}"] {
            assert_eq!(text_parts(plain, 2).len(), usize::from(!plain.is_empty()), "{plain:?}");
        }
        let text = format!("\u{FFFC}{first}");
        assert_eq!(text_parts(&text, 1), [TextPart::Text("\u{FFFC}"), TextPart::Picture(0)]);
    }
}
