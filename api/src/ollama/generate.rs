//! The requests of `/api/generate` and `/api/chat`.

use protocol::{Format, Message};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::null::or_default;
use super::{KeepAliveSpec, Options, Think};
use crate::pictures::Pictures;
use crate::{ChatInput, GenerationOptions, grammar, shapes};

/// Body of `POST /api/generate`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct GenerateRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    #[serde(deserialize_with = "or_default")]
    pub prompt: String,
    /// Text that follows the answer, for models that fill in the middle.
    #[serde(deserialize_with = "or_default")]
    pub suffix: String,
    pub system: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub template: String,
    /// Tokens of the conversation so far, from `context` of an earlier response.
    #[serde(deserialize_with = "or_default")]
    pub context: Vec<i64>,
    pub stream: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub raw: bool,
    /// `"json"`, or a JSON schema that the text must match.
    #[schemars(schema_with = "shapes::format")]
    pub format: Option<Value>,
    pub keep_alive: Option<KeepAliveSpec>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Vec<String>")]
    pub images: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
    pub think: Option<Think>,
    /// Whether the beginning of a prompt that does not fit is dropped. The default is true.
    pub truncate: Option<bool>,
    /// Whether the oldest tokens are dropped when the context is full. The default is true.
    pub shift: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub logprobs: bool,
    #[serde(deserialize_with = "or_default")]
    pub top_logprobs: i64,
    /// Return only the rendered prompt.
    #[serde(rename = "_debug_render_only", deserialize_with = "or_default")]
    pub debug_render_only: bool,
}

/// Body of `POST /api/chat`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ChatRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    #[serde(deserialize_with = "or_default")]
    #[schemars(schema_with = "shapes::messages")]
    pub messages: Vec<Message>,
    pub stream: Option<bool>,
    /// `"json"`, or a JSON schema that the text must match.
    #[schemars(schema_with = "shapes::format")]
    pub format: Option<Value>,
    pub keep_alive: Option<KeepAliveSpec>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub tools: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
    pub think: Option<Think>,
    /// Whether the beginning of a conversation that does not fit is dropped. The default is true.
    pub truncate: Option<bool>,
    /// Whether the oldest tokens are dropped when the context is full. The default is true.
    pub shift: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub logprobs: bool,
    #[serde(deserialize_with = "or_default")]
    pub top_logprobs: i64,
    /// Return only the rendered prompt.
    #[serde(rename = "_debug_render_only", deserialize_with = "or_default")]
    pub debug_render_only: bool,
}

/// Valid roles of messages.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

impl GenerateRequest {
    /// Converts the request to generation options.
    ///
    /// # Errors
    /// Describes the invalid field, in Ollama's wording.
    pub fn demand(&self) -> Result<GenerationOptions, String> {
        let has_system = self.system.as_ref().is_some_and(|system| !system.is_empty());
        if self.raw && (!self.template.is_empty() || has_system || !self.context.is_empty()) {
            return Err("raw mode does not support template, system, or context".to_owned());
        }
        if self.raw && !self.suffix.is_empty() {
            return Err("raw mode does not support suffix".to_owned());
        }
        let demand = demand(&self.options, self.keep_alive)?;
        Ok(GenerationOptions {
            format: format(self.format.as_ref())?,
            top_logprobs: top_logprobs(self.logprobs, self.top_logprobs)?,
            refuse_long_prompts: !self.truncate.unwrap_or(true),
            shift: self.shift.unwrap_or(true),
            ..demand
        })
    }

    /// Returns the prompt with the marks of the pictures, and their files.
    ///
    /// # Errors
    /// Fails if an image is not text.
    pub fn prompt_with_pictures(&self) -> Result<(String, Vec<String>), String> {
        let mut pictures = Pictures::default();
        let prompt = pictures.add_tagged(&self.prompt, &files(&self.images)?);
        Ok((prompt, pictures.into_files()))
    }

    /// Returns the tokens that the prompt continues.
    ///
    /// # Errors
    /// Fails if a number is not a token id.
    pub fn before(&self) -> Result<Vec<u32>, String> {
        let token = |id: &i64| u32::try_from(*id).map_err(|_| format!("'context' has {id}, no token"));
        self.context.iter().map(token).collect()
    }
}

impl ChatRequest {
    /// Converts the request to a conversation and its generation options.
    ///
    /// # Errors
    /// Describes the invalid field, in Ollama's wording.
    pub fn translate(mut self) -> Result<(ChatInput, GenerationOptions), String> {
        let demand = demand(&self.options, self.keep_alive)?;
        let demand = GenerationOptions {
            format: format(self.format.as_ref())?,
            top_logprobs: top_logprobs(self.logprobs, self.top_logprobs)?,
            refuse_long_prompts: !self.truncate.unwrap_or(true),
            shift: self.shift.unwrap_or(true),
            ..demand
        };
        let mut pictures = Pictures::default();
        self.messages.iter_mut().try_for_each(|message| check(message, &mut pictures))?;
        if let Some(tool) = self.tools.iter().find(|tool| !tool["function"]["name"].is_string()) {
            return Err(format!("the tool {tool} has no function with a name"));
        }
        Ok((
            ChatInput {
                messages: self.messages,
                tools: self.tools,
                think: self.think,
                pictures: pictures.into_files(),
                ..ChatInput::default()
            },
            demand,
        ))
    }
}

/// Converts the fields that all requests of this API have.
///
/// # Errors
/// Fails if an option has a value of the wrong type.
pub fn demand(options: &Map<String, Value>, keep_alive: Option<KeepAliveSpec>) -> Result<GenerationOptions, String> {
    let (options, unknown_options) = Options::read(options)?;
    Ok(GenerationOptions { options, unknown_options, keep_alive, ..GenerationOptions::default() })
}

fn top_logprobs(wanted: bool, top: i64) -> Result<Option<u32>, String> {
    let top = u32::try_from(top).ok().filter(|count| *count <= 20);
    let top = top.ok_or("top_logprobs must be between 0 and 20")?;
    Ok(wanted.then_some(top))
}

/// Parses `"json"` or a schema. Returns `None` if the format is empty.
fn format(format: Option<&Value>) -> Result<Option<Format>, String> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Format::Json)),
        Some(schema @ Value::Object(_)) => match grammar::format(schema) {
            Some(format) => Ok(Some(format?)),
            None => Ok(Some(Format::Schema { schema: schema.clone() })),
        },
        Some(other) => Err(format!("invalid format: {other}; expected \"json\" or a valid JSON Schema object")),
    }
}

/// Lowercases the role, refuses a message with an unknown one, and replaces the images by marks in
/// the text.
fn check(message: &mut Message, pictures: &mut Pictures) -> Result<(), String> {
    message.role.make_ascii_lowercase();
    if !ROLES.contains(&message.role.as_str()) {
        let role = &message.role;
        return Err(format!("invalid role: {role}, must be one of [{}]", ROLES.join(", ")));
    }
    if let Some(Value::Array(images)) = message.rest.remove("images") {
        message.content = pictures.add_tagged(&message.content, &files(&images)?);
    }
    Ok(())
}

/// Returns the files of images, as base64.
fn files(images: &[Value]) -> Result<Vec<String>, String> {
    let file = |image: &Value| image.as_str().map(str::to_owned);
    images.iter().map(file).collect::<Option<_>>().ok_or_else(|| "images are a list of base64 texts".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_nothing() {
        let fields =
            ["model", "prompt", "suffix", "system", "template", "context", "stream", "raw", "format", "images"];
        let more = ["keep_alive", "options", "think", "truncate", "shift", "logprobs", "top_logprobs"];
        let all: Map<String, Value> =
            fields.iter().chain(&more).map(|name| ((*name).to_owned(), Value::Null)).collect();
        let request: GenerateRequest = serde_json::from_value(all.into()).expect("all of them may be null");
        assert!(request.keep_alive.is_none() && request.images.is_empty() && !request.raw);
        let chat = r#"{"model":"m","messages":null,"tools":null,"options":null,"logprobs":null}"#;
        let request: ChatRequest = serde_json::from_str(chat).expect("a request");
        assert!(request.messages.is_empty() && request.tools.is_empty());
    }

    #[test]
    fn formats_are_json_or_a_schema() {
        let schema = json!({"type": "object"});
        for (given, expect) in [
            (json!(null), Some(None)),
            (json!(""), Some(None)),
            (json!("json"), Some(Some(Format::Json))),
            (schema.clone(), Some(Some(Format::Schema { schema }))),
            (json!("yaml"), None),
            (json!(["json"]), None),
        ] {
            assert_eq!(format(Some(&given)).ok(), expect, "{given}");
        }
    }

    #[test]
    fn numbers_have_their_bounds() {
        let before =
            |context: &[i64]| GenerateRequest { context: context.to_vec(), ..GenerateRequest::default() }.before();
        assert_eq!(top_logprobs(true, 20).ok(), Some(Some(20)));
        assert_eq!(top_logprobs(false, 3).ok(), Some(None));
        assert!(top_logprobs(true, 21).is_err() && top_logprobs(false, -1).is_err());
        assert!(before(&[0, 7]).is_ok_and(|tokens| tokens == [0, 7]));
        assert!(before(&[-1]).is_err() && before(&[1 << 32]).is_err());
    }
}
