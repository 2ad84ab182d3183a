//! Message content: a string or a list of parts. Text parts are joined by line breaks. Audio is
//! refused.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Refusal;
use crate::pictures::{JoinedText, Pictures};

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
    /// Picture of a part of type `image_url` or `input_image`.
    #[serde(default)]
    image_url: Option<ImageUrl>,
}

/// `image_url` of the chat API, or of the responses API.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a URL, or an object with a URL")]
#[schemars(rename = "OpenAiImageUrl")]
enum ImageUrl {
    Url(String),
    Object { url: String },
}

impl Content {
    /// Returns the text with the marks of the pictures, which are added to `pictures`. `param` is
    /// the path of the field, for errors.
    pub(super) fn text(self, param: &str, pictures: &mut Pictures) -> Result<String, Refusal> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let mut joined = JoinedText::default();
        for (at, part) in parts.into_iter().enumerate() {
            part.add_to(&mut joined, &format!("{param}[{at}]"), pictures)?;
        }
        Ok(joined.into_text())
    }
}

impl Part {
    fn add_to(self, joined: &mut JoinedText, param: &str, pictures: &mut Pictures) -> Result<(), Refusal> {
        let (field, text) = match self.kind.as_str() {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => ("text", self.text),
            "refusal" => ("refusal", self.refusal),
            "image_url" | "input_image" => {
                let param = format!("{param}.image_url");
                let (ImageUrl::Url(url) | ImageUrl::Object { url }) = self
                    .image_url
                    .ok_or_else(|| Refusal::new(&*param, format!("a part of type {} needs it", self.kind)))?;
                joined.push_mark(&pictures.add_url(&url).map_err(|reason| Refusal::new(&*param, reason))?);
                return Ok(());
            }
            other => {
                return Err(Refusal::new(
                    param,
                    format!("this model does not support parts of type `{other}`; only text and images"),
                ));
            }
        };
        let missing = || Refusal::new(format!("{param}.{field}"), format!("a part of type {} needs it", self.kind));
        joined.push_text(&text.ok_or_else(missing)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(content: Value) -> Result<String, Refusal> {
        serde_json::from_value::<Content>(content).expect("content").text("content", &mut Pictures::default())
    }

    #[test]
    fn parts_are_joined() {
        assert_eq!(read(json!("as it is")).as_deref(), Ok("as it is"));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]);
        assert_eq!(read(parts).as_deref(), Ok("a\nno"));
        assert_eq!(read(json!([{"type": "text"}])).expect_err("no text").param, "content[0].text");
        assert_eq!(read(json!([{"type": "input_audio"}])).expect_err("audio").param, "content[0]");
    }

    #[test]
    fn pictures_become_marks() {
        let url = "data:image/png;base64,QQ==";
        for picture in [
            json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}}),
            json!({"type": "input_image", "image_url": url}),
        ] {
            let content = json!([{"type": "text", "text": "a"}, picture, {"type": "text", "text": "b"}]);
            assert_eq!(read(content), Ok(format!("a{}b", protocol::picture_mark(0))));
        }
        let picture = json!([{"type": "image_url", "image_url": {"url": "http://example.com/x.png"}}]);
        let refusal = read(picture).expect_err("not fetched");
        assert_eq!(refusal.param, "content[0].image_url");
        assert_eq!(read(json!([{"type": "image_url"}])).expect_err("nothing").param, "content[0].image_url");
    }
}
