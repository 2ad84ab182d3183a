//! Message content: a string or a list of parts. Text parts are joined by line breaks. Images and
//! audio are refused.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Refusal;

/// A string or parts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected content that is a string or a list of parts")]
#[schemars(rename = "OpenAiContent")]
pub(super) enum Content {
    /// Plain text.
    Text(String),
    /// Parts, in order.
    Parts(Vec<Part>),
}

/// A content part. The chat API and the responses API use different type names for the same part.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiPart")]
pub(super) struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
}

impl Content {
    /// Returns the text. `param` is the path of the field, for errors.
    pub(super) fn text(self, param: &str) -> Result<String, Refusal> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let texts: Result<Vec<String>, Refusal> =
            parts.into_iter().enumerate().map(|(at, part)| part.text(&format!("{param}[{at}]"))).collect();
        Ok(texts?.join("\n"))
    }
}

impl Part {
    fn text(self, param: &str) -> Result<String, Refusal> {
        let (field, text) = match self.kind.as_str() {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => ("text", self.text),
            "refusal" => ("refusal", self.refusal),
            "image_url" | "input_image" => {
                return Err(Refusal::new(param, "this model does not support images"));
            }
            other => {
                return Err(Refusal::new(
                    param,
                    format!("this model does not support parts of type `{other}`; only text"),
                ));
            }
        };
        text.ok_or_else(|| Refusal::new(format!("{param}.{field}"), format!("a part of type {} needs it", self.kind)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(content: Value) -> Result<String, Refusal> {
        serde_json::from_value::<Content>(content).expect("content").text("content")
    }

    #[test]
    fn parts_are_joined_and_pictures_refused() {
        assert_eq!(read(json!("as it is")).as_deref(), Ok("as it is"));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]);
        assert_eq!(read(parts).as_deref(), Ok("a\nno"));
        let picture = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]);
        let refusal = read(picture).expect_err("a picture");
        assert_eq!(refusal, Refusal::new("content[1]", "this model does not support images"));
        assert_eq!(read(json!([{"type": "text"}])).expect_err("no text").param, "content[0].text");
    }
}
