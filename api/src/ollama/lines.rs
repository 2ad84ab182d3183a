//! Conversion of generation events to the lines of `/api/generate` and `/api/chat`.

use protocol::{FinishReason, GenerateEvent, Logprob, Usage};
use serde::Serialize;

use super::{
    AnswerMessage, ChatResponse, DebugInfo, ErrorResponse, FunctionCall, GenerateResponse, Metrics, TokenLogprob,
    ToolCall,
};
use crate::CollectedAnswer;

/// The endpoint that responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/api/generate`.
    Generate,
    /// `/api/chat`.
    Chat,
}

/// Time stamps of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Current time (RFC 3339).
    pub now: String,
    /// Nanoseconds from the request's arrival until now.
    pub total: u64,
    /// Nanoseconds from the request's arrival until the model was loaded.
    pub load: u64,
}

/// Creates the lines of a response.
#[derive(Clone, Debug)]
pub struct AnswerLines {
    endpoint: Endpoint,
    /// Name of the model, as the client wrote it.
    model: String,
    /// Random part of the tool call ids, unique to this response.
    id: String,
    /// Number of tool calls so far.
    calls: u64,
    /// Warnings about ignored parts of the request, for the last line.
    warnings: Vec<String>,
}

/// A line of either endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// A line of `/api/generate`.
    Generate(GenerateResponse),
    /// A line of `/api/chat`.
    Chat(ChatResponse),
    /// An error, which ends the stream.
    Error(ErrorResponse),
}

/// The content of a line.
#[derive(Debug, Default)]
struct Said {
    text: String,
    thinking: String,
    tool_calls: Vec<ToolCall>,
    logprobs: Vec<Logprob>,
}

/// The part of a line that ends the response.
#[derive(Debug, Default)]
struct Ended {
    reason: String,
    metrics: Option<Metrics>,
    tokens: Vec<u32>,
    rendered: Option<DebugInfo>,
}

impl AnswerLines {
    /// Creates lines for a new response.
    pub fn new(endpoint: Endpoint, model: &str, id: String) -> Self {
        Self { endpoint, model: model.to_owned(), id, calls: 0, warnings: Vec::new() }
    }

    /// Adds warnings about ignored options of the request.
    #[must_use]
    pub fn with_ignored(self, ignored: &[String]) -> Self {
        let warnings = ignored.iter().map(|what| format!("{what} is ignored: it is unknown to the daemon")).collect();
        Self { warnings, ..self }
    }

    /// Returns a final line without text, for a completed action (`load`, `unload`).
    pub fn done(&self, reason: &str, moment: &Moment) -> Line {
        let ended = Ended { reason: reason.to_owned(), ..Ended::default() };
        self.line(Said::default(), Some(ended), moment)
    }

    /// Returns a line with the rendered prompt.
    pub fn rendered(&self, text: String, moment: &Moment) -> Line {
        let ended = Ended { rendered: Some(DebugInfo { rendered_template: text }), ..Ended::default() };
        self.line(Said::default(), Some(ended), moment)
    }

    /// Converts an event to a line. `Done` and `Error` give the last line.
    pub fn event(&mut self, event: GenerateEvent, moment: &Moment) -> Line {
        let said = match event {
            GenerateEvent::Text { text, logprobs } => Said { text, logprobs, ..Said::default() },
            GenerateEvent::Thinking { text: thinking, logprobs } => Said { thinking, logprobs, ..Said::default() },
            GenerateEvent::ToolCall { name, arguments, logprobs } => {
                let tool_calls = vec![self.call(crate::ToolCall { name, arguments })];
                Said { tool_calls, logprobs, ..Said::default() }
            }
            GenerateEvent::Done { reason, usage, tokens, .. } => {
                return self.line(Said::default(), Some(ended(reason, usage, tokens, moment)), moment);
            }
            GenerateEvent::Error { error, .. } => return Line::Error(ErrorResponse { error }),
        };
        self.line(said, None, moment)
    }

    /// Returns the complete response as one document.
    pub fn whole(&mut self, answer: CollectedAnswer, moment: &Moment) -> Line {
        let tool_calls = answer.tool_calls.into_iter().map(|call| self.call(call)).collect();
        let said = Said { text: answer.text, thinking: answer.thinking, tool_calls, logprobs: answer.logprobs };
        let reason = answer.reason.unwrap_or(FinishReason::Stop);
        self.line(said, Some(ended(reason, answer.usage, answer.tokens, moment)), moment)
    }

    fn call(&mut self, call: crate::ToolCall) -> ToolCall {
        let index = self.calls;
        self.calls += 1;
        let id = format!("call_{}_{index}", self.id);
        ToolCall { id, function: FunctionCall { index, name: call.name, arguments: call.arguments } }
    }

    fn line(&self, said: Said, ended: Option<Ended>, moment: &Moment) -> Line {
        let (model, created_at) = (self.model.clone(), moment.now.clone());
        let Said { text, thinking, tool_calls, logprobs } = said;
        let logprobs = logprobs.into_iter().map(TokenLogprob::from).collect();
        let Ended { reason, metrics, tokens: context, rendered: debug_info } = ended.unwrap_or_default();
        // A response with a rendered prompt only has no reason and is not `done`.
        let done = !reason.is_empty();
        let done_reason = done.then_some(reason);
        let warnings = if done { self.warnings.clone() } else { Vec::new() };
        match self.endpoint {
            Endpoint::Generate => Line::Generate(GenerateResponse {
                model,
                created_at,
                response: text,
                thinking,
                done,
                done_reason,
                context,
                metrics,
                tool_calls,
                logprobs,
                warnings,
                debug_info,
            }),
            Endpoint::Chat => {
                let message = AnswerMessage { role: "assistant".to_owned(), content: text, thinking, tool_calls };
                Line::Chat(ChatResponse {
                    model,
                    created_at,
                    message,
                    done,
                    done_reason,
                    metrics,
                    logprobs,
                    warnings,
                    debug_info,
                })
            }
        }
    }
}

fn ended(reason: FinishReason, usage: Usage, tokens: Vec<u32>, moment: &Moment) -> Ended {
    let reason = match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Repetition => "repetition",
    };
    let metrics = Some(Metrics::new(usage, moment.total, moment.load));
    Ended { reason: reason.to_owned(), metrics, tokens, rendered: None }
}

#[cfg(test)]
mod tests {
    use protocol::FailureKind;
    use serde_json::{Map, Value, json};

    use super::*;

    fn check(line: &Line, expect: &[(&str, Value)]) {
        let line = serde_json::to_value(line).expect("a document");
        for (pointer, value) in expect {
            assert_eq!(line.pointer(pointer), Some(value), "{pointer} of {line}");
        }
    }

    #[test]
    fn events_become_lines_of_their_endpoint() {
        let moment = Moment { now: "2026-01-02T03:04:05Z".to_owned(), total: 7, load: 3 };
        let text = || GenerateEvent::Text { text: "Hi".to_owned(), logprobs: Vec::new() };
        let call = || GenerateEvent::ToolCall { name: "f".to_owned(), arguments: Map::new(), logprobs: Vec::new() };
        let end = || GenerateEvent::Done {
            reason: FinishReason::Length,
            usage: Usage::default(),
            tokens: vec![5],
            stop: None,
        };
        let mut chat = AnswerLines::new(Endpoint::Chat, "M", "id".to_owned());
        check(
            &chat.event(text(), &moment),
            &[("/message/content", json!("Hi")), ("/done", json!(false)), ("/model", json!("M"))],
        );
        check(&chat.event(call(), &moment), &[("/message/tool_calls/0/id", json!("call_id_0"))]);
        check(&chat.event(call(), &moment), &[("/message/tool_calls/0/function/index", json!(1))]);
        let ended = chat.event(end(), &moment);
        check(
            &ended,
            &[("/done_reason", json!("length")), ("/total_duration", json!(7)), ("/load_duration", json!(3))],
        );
        let mut generate = AnswerLines::new(Endpoint::Generate, "M", "id".to_owned());
        check(&generate.event(text(), &moment), &[("/response", json!("Hi"))]);
        check(&generate.event(end(), &moment), &[("/context", json!([5])), ("/done", json!(true))]);
        check(&generate.done("load", &moment), &[("/done_reason", json!("load")), ("/response", json!(""))]);
        let shown = generate.rendered("<s>".to_owned(), &moment);
        check(&shown, &[("/_debug_info/rendered_template", json!("<s>")), ("/done", json!(false))]);
        let error = GenerateEvent::Error { error: "no".to_owned(), kind: FailureKind::Internal };
        check(&generate.event(error, &moment), &[("/error", json!("no"))]);
    }

    #[test]
    fn a_whole_answer_is_one_document() {
        let mut answer = CollectedAnswer::default();
        for event in [
            GenerateEvent::Thinking { text: "hm".to_owned(), logprobs: Vec::new() },
            GenerateEvent::Text { text: "Hi".to_owned(), logprobs: Vec::new() },
            GenerateEvent::Done { reason: FinishReason::Stop, usage: Usage::default(), tokens: Vec::new(), stop: None },
        ] {
            answer.push(event);
        }
        let line = AnswerLines::new(Endpoint::Chat, "M", String::new()).whole(answer, &Moment::default());
        check(
            &line,
            &[("/message/thinking", json!("hm")), ("/message/content", json!("Hi")), ("/done_reason", json!("stop"))],
        );
    }
}
