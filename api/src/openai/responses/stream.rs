//! A response while it is generated. Events of the generation become items, and each step of an
//! item becomes a frame.
//!
//! An item stays open until a piece of another kind arrives. A response that is not streamed is
//! built in the same way, without sending the frames.

use protocol::{FailureKind, FinishReason, GenerateEvent, Logprob};
use serde_json::Value;

use super::Response;
use super::document::{Incomplete, Item, Part, ResponseError, Status, Usage};
use super::event::{Fields, ResponseEvent};
use super::tools::split;
use crate::Frame;
use crate::openai::logprobs::TokenLogprob;

/// Converts generation events to a response.
#[derive(Clone, Debug)]
pub struct ResponseStream {
    response: Response,
    /// The random part of all ids.
    id: String,
    /// Sequence number of the next frame.
    sequence: u64,
    open: Option<Open>,
    reasoning_tokens: u64,
}

/// The open item, which becomes the last item of the output.
#[derive(Clone, Debug)]
struct Open {
    kind: Kind,
    id: String,
    text: String,
    logprobs: Vec<TokenLogprob>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
}

impl Open {
    fn part(&self) -> Part {
        match self.kind {
            Kind::Reasoning => Part::ReasoningText { text: self.text.clone() },
            Kind::Message => {
                Part::OutputText { text: self.text.clone(), annotations: [], logprobs: self.logprobs.clone() }
            }
        }
    }

    /// Returns the item. It has no content while it is in progress.
    fn item(&self, status: Status) -> Item {
        let content = if status == Status::InProgress { Vec::new() } else { vec![self.part()] };
        let id = self.id.clone();
        match self.kind {
            Kind::Reasoning => Item::Reasoning { id, summary: Vec::new(), content, status },
            Kind::Message => Item::Message { id, role: "assistant", content, status },
        }
    }
}

impl ResponseStream {
    /// Creates a stream for a response without output.
    pub fn new(response: Response) -> Self {
        let id = response.id.trim_start_matches("resp_").to_owned();
        Self { response, id, sequence: 0, open: None, reasoning_tokens: 0 }
    }

    /// Returns the response in its current state.
    pub fn response(&self) -> &Response {
        &self.response
    }

    /// Returns the events that start the stream.
    pub fn begin(&mut self) -> Vec<Frame> {
        vec![self.state("response.created"), self.state("response.in_progress")]
    }

    /// Converts a generation event to frames. The stream ends with `Done` or an error.
    pub fn event(&mut self, event: GenerateEvent) -> Vec<Frame> {
        let mut frames = Vec::new();
        match event {
            GenerateEvent::Text { text, logprobs } => self.piece(Kind::Message, &text, logprobs, &mut frames),
            GenerateEvent::Thinking { text, .. } => {
                self.reasoning_tokens += 1;
                self.piece(Kind::Reasoning, &text, Vec::new(), &mut frames);
            }
            GenerateEvent::ToolCall { name, arguments, .. } => {
                self.close(Status::Completed, &mut frames);
                self.call(&name, Value::Object(arguments).to_string(), &mut frames);
            }
            GenerateEvent::Done { reason, usage, .. } => self.end(reason, usage, &mut frames),
            GenerateEvent::Error { error, kind } => {
                self.fail(error, kind == FailureKind::BadRequest, &mut frames);
            }
        }
        frames
    }

    fn frame(&mut self, name: &'static str, fields: Fields<'_>) -> Frame {
        let event = ResponseEvent { kind: name, sequence_number: self.sequence, fields };
        self.sequence += 1;
        event.frame()
    }

    /// Creates a frame with the whole response.
    fn state(&mut self, name: &'static str) -> Frame {
        let event = ResponseEvent {
            kind: name,
            sequence_number: self.sequence,
            fields: Fields::Response { response: &self.response },
        };
        self.sequence += 1;
        event.frame()
    }

    fn piece(&mut self, kind: Kind, text: &str, logprobs: Vec<Logprob>, frames: &mut Vec<Frame>) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close(Status::Completed, frames);
            self.open(kind, frames);
        }
        let index = self.response.output.len();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let logprobs: Vec<TokenLogprob> = logprobs.into_iter().map(TokenLogprob::from).collect();
        let fields = Fields::Delta {
            item_id: open.id.clone(),
            output_index: index,
            content_index: Some(0),
            delta: text.to_owned(),
            logprobs: (kind == Kind::Message).then(|| logprobs.clone()),
        };
        open.logprobs.extend(logprobs);
        let name = match kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message => "response.output_text.delta",
        };
        frames.push(self.frame(name, fields));
    }

    fn open(&mut self, kind: Kind, frames: &mut Vec<Frame>) {
        let index = self.response.output.len();
        let prefix = if kind == Kind::Reasoning { "rs" } else { "msg" };
        let id = format!("{prefix}_{}_{index}", self.id);
        let open = Open { kind, id, text: String::new(), logprobs: Vec::new() };
        let item = Fields::Item { output_index: index, item: open.item(Status::InProgress) };
        frames.push(self.frame("response.output_item.added", item));
        let part = open.part();
        let part = Fields::Part { item_id: open.id.clone(), output_index: index, content_index: 0, part };
        frames.push(self.frame("response.content_part.added", part));
        self.open = Some(open);
    }

    fn close(&mut self, status: Status, frames: &mut Vec<Frame>) {
        let Some(open) = self.open.take() else { return };
        let index = self.response.output.len();
        let (name, logprobs) = match open.kind {
            Kind::Reasoning => ("response.reasoning_text.done", None),
            Kind::Message => ("response.output_text.done", Some(open.logprobs.clone())),
        };
        let (item_id, text) = (open.id.clone(), open.text.clone());
        let text = Fields::Text { item_id, output_index: index, content_index: 0, text, logprobs };
        frames.push(self.frame(name, text));
        let part = open.part();
        let part = Fields::Part { item_id: open.id.clone(), output_index: index, content_index: 0, part };
        frames.push(self.frame("response.content_part.done", part));
        self.finish(open.item(status), frames);
    }

    /// Adds a complete item to the output.
    fn finish(&mut self, item: Item, frames: &mut Vec<Frame>) {
        let fields = Fields::Item { output_index: self.response.output.len(), item: item.clone() };
        frames.push(self.frame("response.output_item.done", fields));
        self.response.output.push(item);
    }

    fn call(&mut self, called: &str, arguments: String, frames: &mut Vec<Frame>) {
        let (namespace, name) = split(called, &self.response.echo.namespaces);
        let index = self.response.output.len();
        let (id, call_id) = (format!("fc_{}_{index}", self.id), format!("call_{}_{index}", self.id));
        let item = |arguments: String, status: Status| Item::FunctionCall {
            id: id.clone(),
            call_id: call_id.clone(),
            name: name.clone(),
            namespace: namespace.clone(),
            arguments,
            status,
        };
        let added = Fields::Item { output_index: index, item: item(String::new(), Status::InProgress) };
        frames.push(self.frame("response.output_item.added", added));
        let delta = Fields::Delta {
            item_id: id.clone(),
            output_index: index,
            content_index: None,
            delta: arguments.clone(),
            logprobs: None,
        };
        frames.push(self.frame("response.function_call_arguments.delta", delta));
        let (item_id, name) = (id.clone(), name.clone());
        let done = Fields::Arguments { item_id, output_index: index, name, arguments: arguments.clone() };
        frames.push(self.frame("response.function_call_arguments.done", done));
        self.finish(item(arguments, Status::Completed), frames);
    }

    fn end(&mut self, reason: FinishReason, usage: protocol::Usage, frames: &mut Vec<Frame>) {
        let status = match reason {
            FinishReason::Stop => Status::Completed,
            FinishReason::Length | FinishReason::Repetition => Status::Incomplete,
        };
        self.close(status, frames);
        self.response.status = status;
        self.response.usage = Some(Usage::new(usage, self.reasoning_tokens));
        let name = match reason {
            FinishReason::Stop => "response.completed",
            FinishReason::Length | FinishReason::Repetition => {
                self.response.incomplete_details = Some(Incomplete { reason: "max_output_tokens" });
                "response.incomplete"
            }
        };
        frames.push(self.state(name));
    }

    /// Ends the response with an error. Sends an `error` event for clients that look for errors,
    /// and the failed response for clients that wait for the end.
    fn fail(&mut self, message: String, bad_request: bool, frames: &mut Vec<Frame>) {
        let code = if bad_request { "invalid_prompt" } else { "server_error" };
        let fields = Fields::Error { code, message: message.clone(), param: None };
        frames.push(self.frame("error", fields));
        self.response.status = Status::Failed;
        self.response.error = Some(ResponseError { code, message });
        frames.push(self.state("response.failed"));
    }
}
