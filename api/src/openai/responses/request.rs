//! The request for a response.

use protocol::Format;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::input::{Input, messages};
use super::tools::{Offered, list_omitted, offered};
use crate::ollama::{KeepAliveSpec, Options};
use crate::openai::format::TextFormat;
use crate::openai::sampling::{top_logprobs, within};
use crate::openai::tools;
use crate::pictures::Pictures;
use crate::{ChatInput, GenerationOptions, Refusal};

/// Body of `POST /v1/responses`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct ResponsesRequest {
    pub model: String,
    input: Option<Input>,
    pub stream: Option<bool>,
    pub include: Option<Vec<String>>,
    pub previous_response_id: Option<String>,
    pub conversation: Option<Value>,
    pub background: Option<bool>,
    pub prompt: Option<Value>,
    /// Lode extension: Ollama's options. `OpenAI`'s own fields take precedence over them.
    #[schemars(with = "Option<Options>")]
    pub options: Option<Map<String, Value>>,
    /// Lode extension: how long the model stays loaded, as in Ollama's API.
    pub keep_alive: Option<KeepAliveSpec>,
    #[serde(flatten)]
    pub echo: Echo,
}

/// Fields of the request that the response repeats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct Echo {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<i64>,
    pub metadata: Option<Map<String, Value>>,
    pub parallel_tool_calls: Option<bool>,
    pub reasoning: Option<ReasoningEcho>,
    pub temperature: Option<f64>,
    pub text: Option<TextConfig>,
    pub tool_choice: Option<Value>,
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    pub tools: Option<Vec<Value>>,
    pub top_logprobs: Option<u32>,
    pub top_p: Option<f64>,
    pub truncation: Option<String>,
    pub user: Option<String>,
    /// Namespaces of the tools, for splitting the names of called functions.
    #[serde(skip)]
    pub(super) namespaces: Vec<String>,
}

/// Reasoning options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReasoningEcho {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    pub effort: Option<String>,
    /// Has no effect: reasoning is returned as it is, never summarized.
    pub summary: Option<String>,
}

/// Text options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TextConfig {
    /// The required format of the text.
    pub format: Option<TextFormat>,
}

impl ResponsesRequest {
    /// Returns true if the response is a stream.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Converts the request to a conversation, its generation options, and the fields that the
    /// response repeats.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(self) -> Result<(ChatInput, GenerationOptions, Echo), Refusal> {
        self.refuse_what_is_not_there()?;
        let demand = self.demand()?;
        let echo = self.echo;
        let think = echo.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
        let think = tools::think(think, "reasoning.effort")?;
        let offered = offered(echo.tools.as_deref().unwrap_or_default())?;
        let tools = tools::tools(&offered.functions)?;
        let (tools, tool_choice) = tools::choose(tools, echo.tool_choice.as_ref())?;
        let input = self.input.ok_or_else(|| Refusal::new("input", "there is no input to respond to"))?;
        let mut pictures = Pictures::default();
        let messages = messages(input, echo.instructions.clone(), &mut pictures)?;
        if messages.iter().all(|message| message.role == "system") {
            return Err(Refusal::new("input", "there is no input to respond to"));
        }
        Ok((
            ChatInput {
                messages,
                tools,
                think,
                thinking_is_optional: true,
                omitted_tools: offered.omitted.clone(),
                pictures: pictures.into_files(),
                ..ChatInput::default()
            },
            GenerationOptions { tool_choice, ..demand },
            complete(echo, offered),
        ))
    }

    fn demand(&self) -> Result<GenerationOptions, Refusal> {
        let echo = &self.echo;
        let (given, unknown_options) = Options::of_field(self.options.as_ref())?;
        let options = Options {
            temperature: within("temperature", echo.temperature, 0.0, 2.0)?,
            top_p: within("top_p", echo.top_p, 0.0, 1.0)?,
            num_predict: echo.max_output_tokens,
            ..Options::default()
        };
        let wants_logprobs = self.include.iter().flatten().any(|what| what == "message.output_text.logprobs");
        let most = echo.top_logprobs.filter(|count| *count > 0).or(wants_logprobs.then_some(0));
        let format: Option<Format> = match echo.text.as_ref().and_then(|text| text.format.as_ref()) {
            Some(format) => format.format("text.format")?,
            None => None,
        };
        let refuse_long_prompts = match echo.truncation.as_deref() {
            None | Some("disabled") => true,
            Some("auto") => false,
            Some(other) => {
                let message = format!("`{other}` is no truncation; expected auto or disabled");
                return Err(Refusal::new("truncation", message));
            }
        };
        Ok(GenerationOptions {
            options: options.over(given),
            unknown_options,
            top_logprobs: most.map(|count| top_logprobs("top_logprobs", count, 20)).transpose()?,
            format,
            one_tool_call: echo.parallel_tool_calls == Some(false),
            refuse_long_prompts,
            keep_alive: self.keep_alive,
            ..GenerationOptions::of_openai()
        })
    }

    fn refuse_what_is_not_there(&self) -> Result<(), Refusal> {
        let set = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if self.previous_response_id.is_some() {
            let message = "responses are not stored here; send the whole conversation as input";
            return Err(Refusal::new("previous_response_id", message));
        }
        if set(&self.conversation) {
            let message = "conversations are not stored here; send the whole conversation as input";
            return Err(Refusal::new("conversation", message));
        }
        if self.background == Some(true) {
            let message = "responses are not stored here, so none can be made in the background";
            return Err(Refusal::new("background", message));
        }
        if set(&self.prompt) {
            return Err(Refusal::new("prompt", "prompts are not stored here; send the text as instructions or input"));
        }
        Ok(())
    }
}

/// Fills in defaults for fields that the request omits, because clients expect them in the
/// response.
fn complete(echo: Echo, offered: Offered) -> Echo {
    let text = echo.text.filter(|text| text.format.is_some());
    let mut metadata = echo.metadata.unwrap_or_default();
    list_omitted(&mut metadata, &offered.omitted);
    Echo {
        metadata: Some(metadata),
        namespaces: offered.namespaces,
        parallel_tool_calls: echo.parallel_tool_calls.or(Some(true)),
        reasoning: echo.reasoning.or_else(|| Some(ReasoningEcho::default())),
        text: text.or_else(|| Some(TextConfig { format: Some(TextFormat::text()) })),
        tool_choice: echo.tool_choice.or_else(|| Some("auto".into())),
        tools: echo.tools.or_else(|| Some(Vec::new())),
        truncation: echo.truncation.or_else(|| Some("disabled".to_owned())),
        ..echo
    }
}
