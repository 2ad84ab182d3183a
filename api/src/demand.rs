//! What a request asks of a model, whichever API it came by.

use protocol::{Format, GenerateRequest, Message, ToolChoice};
use serde_json::Value;

use crate::ollama::{KeepAliveSpec, Options, Think};

/// A conversation that is to go on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dialogue {
    /// In order; a system prompt is the first.
    pub messages: Vec<Message>,
    /// As templates want them: `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
    /// Where the request says.
    pub think: Option<Think>,
}

/// How to generate: everything of a request but what to go on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    /// Options that the request sets; what it leaves open is the model's choice.
    pub options: Options,
    /// See [`GenerateRequest::top_logprobs`].
    pub top_logprobs: Option<u32>,
    /// See [`GenerateRequest::logit_bias`].
    pub logit_bias: Vec<(u32, f32)>,
    /// See [`GenerateRequest::format`].
    pub format: Option<Format>,
    /// See [`GenerateRequest::tool_choice`].
    pub tool_choice: ToolChoice,
    /// Whether only the first call of a tool is told.
    pub one_tool_call: bool,
    /// Whether a prompt that does not fit is refused; else its beginning is dropped.
    pub refuse_long_prompts: bool,
    /// How long the model stays loaded.
    pub keep_alive: Option<KeepAliveSpec>,
}

impl Demand {
    /// Puts into a request what is not an option.
    pub fn apply(&self, request: &mut GenerateRequest) {
        request.top_logprobs = self.top_logprobs;
        request.logit_bias.clone_from(&self.logit_bias);
        request.format.clone_from(&self.format);
        request.tool_choice = self.tool_choice.clone();
        request.truncate = !self.refuse_long_prompts;
    }

    /// What holds where neither a request nor its model says: the defaults of `OpenAI`'s and Anthropic's APIs, which differ
    /// from Ollama's.
    pub fn defaults() -> Options {
        Options { temperature: Some(1.0), top_p: Some(1.0), ..Options::default() }
    }
}
