//! A generation under way, in terms that every dialect can tell.

use std::time::Duration;

use protocol::{FinishReason, GenerateEvent, Logprob, Usage};
use rand::Rng;
use scheduler::Events;
use serde_json::{Map, Value};

use super::meter::Meter;
use super::{Ready, refused};
use crate::error::Failed;

/// A generation under way. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Generation {
    ready: Ready,
    first: Option<GenerateEvent>,
    events: Events,
    meter: Meter,
}

/// What a generation yields.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    /// More text; empty where only log-probabilities are told.
    Text { text: String, logprobs: Vec<Logprob> },
    /// More of what the model thinks before it answers.
    Thinking { text: String, logprobs: Vec<Logprob> },
    /// A call of a tool; whole.
    ToolCall { call: ToolCall, logprobs: Vec<Logprob> },
    /// The end; always the last.
    End(End),
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    /// Names the call in what follows; no two are the same.
    pub(crate) id: String,
    /// The function.
    pub(crate) name: String,
    /// An object.
    pub(crate) arguments: Map<String, Value>,
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) reason: FinishReason,
    pub(crate) usage: Usage,
    /// The tokens of prompt and answer, where they were asked for.
    pub(crate) tokens: Vec<u32>,
    /// From the request's arrival until now.
    pub(crate) total: Duration,
    /// From the request's arrival until the model was there.
    pub(crate) load: Duration,
}

/// A generation that is over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) thinking: String,
    pub(crate) tool_calls: Vec<ToolCall>,
    /// Of all tokens, in order, where they were asked for.
    pub(crate) logprobs: Vec<Logprob>,
    pub(crate) end: End,
}

impl Generation {
    /// One that has said its first word.
    pub(super) fn new(ready: Ready, first: GenerateEvent, events: Events, meter: Meter) -> Self {
        meter.first_word(ready.elapsed().as_secs_f64());
        Self { ready, first: Some(first), events, meter }
    }

    /// The next piece. After [`Piece::End`] or an error there is nothing to ask for. Nothing is lost where the future is
    /// dropped before it is ready, so it may wait beside something else.
    ///
    /// # Errors
    /// The runner died or gave up; what was yielded before is true all the same.
    pub(crate) async fn next(&mut self) -> Result<Piece, Failed> {
        let piece = match self.first.take() {
            Some(event) => self.piece(event),
            None => match self.events.next().await {
                Some(event) => event.map_err(Failed::from).and_then(|event| self.piece(event)),
                None => Err(anyhow::anyhow!("the runner ended without an answer").into()),
            },
        };
        match &piece {
            Ok(Piece::End(end)) => self.meter.done(end.reason, &end.usage),
            Ok(_) => {}
            Err(_) => self.meter.failed(),
        }
        piece
    }

    fn piece(&self, event: GenerateEvent) -> Result<Piece, Failed> {
        Ok(match event {
            GenerateEvent::Text { text, logprobs } => Piece::Text { text, logprobs },
            GenerateEvent::Thinking { text, logprobs } => Piece::Thinking { text, logprobs },
            GenerateEvent::ToolCall { name, arguments, logprobs } => {
                Piece::ToolCall { call: ToolCall { id: new_id(), name, arguments }, logprobs }
            }
            GenerateEvent::Done { reason, usage, tokens } => {
                let (total, load) = (self.ready.elapsed(), self.ready.load());
                Piece::End(End { reason, usage, tokens, total, load })
            }
            GenerateEvent::Error { error, kind } => return Err(refused(error, kind)),
        })
    }

    /// All of it, once it is over.
    ///
    /// # Errors
    /// As [`next`](Self::next); nothing is told of a generation that did not reach its end.
    pub(crate) async fn whole(mut self) -> Result<Whole, Failed> {
        let (mut all, mut thought, mut tool_calls, mut all_logprobs) =
            (String::new(), String::new(), Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                Piece::Text { text, logprobs } => {
                    all.push_str(&text);
                    all_logprobs.extend(logprobs);
                }
                Piece::Thinking { text, logprobs } => {
                    thought.push_str(&text);
                    all_logprobs.extend(logprobs);
                }
                Piece::ToolCall { call, logprobs } => {
                    tool_calls.push(call);
                    all_logprobs.extend(logprobs);
                }
                Piece::End(end) => {
                    return Ok(Whole { text: all, thinking: thought, tool_calls, logprobs: all_logprobs, end });
                }
            }
        }
    }
}

/// `call_` and sixteen letters and digits.
fn new_id() -> String {
    let letters = rand::rng().sample_iter(rand::distr::Alphanumeric).take(16).map(char::from);
    "call_".chars().chain(letters).collect()
}
