//! Answers in the form of the endpoint that was called.

use std::time::{Duration, SystemTime};

use api::ollama::{
    AnswerMessage, ChatResponse, DebugInfo, ErrorResponse, FunctionCall, GenerateResponse, Metrics, TokenLogprob,
    ToolCall,
};
use axum::Json;
use axum::response::{IntoResponse, Response};
use protocol::{FinishReason, Logprob};
use serde::Serialize;

use crate::call::{self, Call, End, Generation, Piece, Whole};
use crate::describe::timestamp;
use crate::stream::Lines;

/// Which of the two endpoints answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Generate,
    Chat,
}

/// Makes the lines of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// The model's name as the client wrote it.
    name: String,
    dialect: Dialect,
    /// Tools that were called so far.
    calls: u64,
}

/// What a line says besides how it ended.
#[derive(Debug, Default)]
struct Said {
    text: String,
    thinking: String,
    tool_calls: Vec<ToolCall>,
    logprobs: Vec<Logprob>,
}

/// A line of either endpoint.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Line {
    Generate(GenerateResponse),
    Chat(ChatResponse),
}

impl IntoResponse for Line {
    fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

impl Answer {
    pub(super) fn new(call: &Call, dialect: Dialect) -> Self {
        Self { name: call.name.clone(), dialect, calls: 0 }
    }

    /// That something was done (`load`, `unload`), without any text.
    pub(super) fn event(&self, reason: &str) -> Line {
        let mut line = self.line(Said::default());
        let (done, done_reason) = match &mut line {
            Line::Generate(line) => (&mut line.done, &mut line.done_reason),
            Line::Chat(line) => (&mut line.done, &mut line.done_reason),
        };
        (*done, *done_reason) = (true, Some(reason.to_owned()));
        line
    }

    /// What the prompt was rendered to.
    pub(super) fn rendered(&self, text: String) -> Line {
        let info = Some(DebugInfo { rendered_template: text });
        let mut line = self.line(Said::default());
        match &mut line {
            Line::Generate(line) => line.debug_info = info,
            Line::Chat(line) => line.debug_info = info,
        }
        line
    }

    /// The whole answer in one document.
    pub(super) fn whole(mut self, whole: Whole) -> Line {
        let tool_calls = whole.tool_calls.into_iter().map(|call| self.tool_call(call)).collect();
        let said = Said { text: whole.text, thinking: whole.thinking, tool_calls, logprobs: whole.logprobs };
        self.end(said, whole.end)
    }

    fn tool_call(&mut self, call: call::ToolCall) -> ToolCall {
        let index = self.calls;
        self.calls += 1;
        ToolCall { id: call.id, function: FunctionCall { index, name: call.name, arguments: call.arguments } }
    }

    fn end(&self, said: Said, end: End) -> Line {
        let metrics = Some(Metrics::new(end.usage, nanos(end.total), nanos(end.load)));
        let done_reason = Some(name_of(end.reason).to_owned());
        match self.line(said) {
            Line::Generate(line) => {
                Line::Generate(GenerateResponse { done: true, done_reason, metrics, context: end.tokens, ..line })
            }
            Line::Chat(line) => Line::Chat(ChatResponse { done: true, done_reason, metrics, ..line }),
        }
    }

    fn line(&self, said: Said) -> Line {
        let (model, created_at) = (self.name.clone(), timestamp(SystemTime::now()));
        let Said { text, thinking, tool_calls, logprobs } = said;
        let logprobs = logprobs.into_iter().map(TokenLogprob::from).collect();
        match self.dialect {
            Dialect::Generate => Line::Generate(GenerateResponse {
                model,
                created_at,
                response: text,
                thinking,
                tool_calls,
                logprobs,
                ..GenerateResponse::default()
            }),
            Dialect::Chat => {
                let message = AnswerMessage { role: "assistant".to_owned(), content: text, thinking, tool_calls };
                Line::Chat(ChatResponse { model, created_at, message, logprobs, ..ChatResponse::default() })
            }
        }
    }
}

/// Durations are told in nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn name_of(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// Sends what is generated until the end, or until nobody listens.
pub(super) async fn stream(mut generation: Generation, mut answer: Answer, lines: Lines) {
    loop {
        // Text may be held back for long; a client that goes away meanwhile is noticed here.
        let piece = tokio::select! {
            piece = generation.next() => piece,
            () = lines.closed() => return,
        };
        let said = match piece {
            Ok(Piece::Text { text, logprobs }) => Said { text, logprobs, ..Said::default() },
            Ok(Piece::Thinking { text: thinking, logprobs }) => Said { thinking, logprobs, ..Said::default() },
            Ok(Piece::ToolCall { call, logprobs }) => {
                Said { tool_calls: vec![answer.tool_call(call)], logprobs, ..Said::default() }
            }
            Ok(Piece::End(end)) => {
                lines.send(&answer.end(Said::default(), end)).await;
                return;
            }
            Err(failed) => {
                tracing::warn!("{}", failed.message);
                lines.send(&ErrorResponse { error: failed.message }).await;
                return;
            }
        };
        if !lines.send(&answer.line(said)).await {
            tracing::debug!("the client went away");
            return;
        }
    }
}
