//! The request for a chat.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::message::{ChatMessage, messages};
use crate::openai::format::TextFormat;
use crate::openai::sampling::{Sampling, top_logprobs};
use crate::openai::tools::{self, Reasoning};
use crate::pictures::Pictures;
use crate::{ChatInput, GenerationOptions, Refusal};

/// Body of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
#[schemars(rename = "OpenAiChatRequest")]
pub struct ChatRequest {
    pub model: String,
    pub messages: Vec<ChatMessage>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    pub sampling: Sampling,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u32>,
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub response_format: Option<TextFormat>,
    pub reasoning_effort: Option<String>,
    pub reasoning: Option<Reasoning>,
    pub modalities: Option<Vec<String>>,
    pub functions: Option<Value>,
    pub function_call: Option<Value>,
    pub web_search_options: Option<Value>,
    /// Variables for the model's chat template, such as `enable_thinking`. Not part of `OpenAI`'s
    /// API.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Documents to base the answer on, for templates that support them. Not part of `OpenAI`'s
    /// API.
    #[schemars(with = "Option<Vec<Map<String, Value>>>")]
    pub documents: Option<Value>,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct StreamOptions {
    pub include_usage: Option<bool>,
}

impl ChatRequest {
    /// Returns true if the response is a stream.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Returns true if the stream ends with token usage.
    pub fn wants_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Returns true if choices include log-probabilities.
    pub fn wants_logprobs(&self) -> bool {
        self.logprobs.unwrap_or(false)
    }

    /// Returns the number of choices.
    ///
    /// # Errors
    /// Fails if the number is 0 or too large.
    pub fn choices(&self) -> Result<u32, Refusal> {
        self.sampling.choices()
    }

    /// Converts the request to a conversation and its generation options.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(self) -> Result<(ChatInput, GenerationOptions), Refusal> {
        self.refuse_what_is_not_there()?;
        if self.messages.is_empty() {
            return Err(Refusal::new("messages", "a chat needs at least one message"));
        }
        let effort = self.reasoning_effort.as_deref().map(|effort| (effort, "reasoning_effort"));
        let effort = effort.or_else(|| {
            self.reasoning.as_ref().and_then(|r| r.effort.as_deref()).map(|effort| (effort, "reasoning.effort"))
        });
        let think = effort.map_or(Ok(None), |(effort, param)| tools::think(Some(effort), param))?;
        let format = self.response_format.as_ref().map_or(Ok(None), |format| format.format("response_format"))?;
        let top_logprobs = match (self.logprobs, self.top_logprobs) {
            (Some(true), count) => Some(top_logprobs("top_logprobs", count.unwrap_or(0), 20)?),
            (_, Some(1..)) => return Err(Refusal::new("top_logprobs", "top_logprobs needs logprobs to be true")),
            (_, _) => None,
        };
        let demand = self.sampling.demand(self.max_completion_tokens.or(self.max_tokens))?;
        let tools = tools::tools(self.tools.as_deref().unwrap_or_default())?;
        let (tools, tool_choice) = tools::choose(tools, self.tool_choice.as_ref())?;
        let one_tool_call = self.parallel_tool_calls == Some(false);
        let mut pictures = Pictures::default();
        let messages = messages(self.messages, &mut pictures)?;
        let (variables, documents) = (self.chat_template_kwargs.unwrap_or_default(), self.documents);
        if documents
            .as_ref()
            .is_some_and(|documents| !documents.as_array().is_some_and(|all| all.iter().all(Value::is_object)))
        {
            return Err(Refusal::new(
                "documents",
                "documents are a list of objects, such as {\"title\": …, \"text\": …}",
            ));
        }
        Ok((
            ChatInput {
                messages,
                tools,
                think,
                thinking_is_optional: true,
                variables,
                documents,
                pictures: pictures.into_files(),
                ..ChatInput::default()
            },
            GenerationOptions { top_logprobs, format, tool_choice, one_tool_call, ..demand },
        ))
    }

    fn refuse_what_is_not_there(&self) -> Result<(), Refusal> {
        let set = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if self.modalities.iter().flatten().any(|modality| modality != "text") {
            return Err(Refusal::new("modalities", "only text is supported"));
        }
        if set(&self.functions) || set(&self.function_call) {
            return Err(Refusal::new("functions", "functions are not supported; use tools"));
        }
        if set(&self.web_search_options) {
            return Err(Refusal::new("web_search_options", "web search is not supported"));
        }
        Ok(())
    }
}
