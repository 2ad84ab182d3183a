//! The output of an answer: whole characters, held back while they may begin a stop string, and
//! separated into text, thinking and tool calls.

use anyhow::Result;
use prompt::stop::Passed;
use prompt::{OutputReader, Part, Reading, StopFilter, TextStream, Tools};
use protocol::{FinishReason, GenerateEvent, GenerateRequest, Logprob};

use super::Sink;
use crate::engine::Listener;
use crate::text::model::Model;
use crate::text::text_model::TextModel;

/// The outcome of a token's text.
pub(super) enum Heard {
    /// The answer goes on.
    More,
    /// A stop string was found.
    Stopped,
    /// The listener is gone.
    Gone,
}

/// An answer that is being sent.
pub(super) struct AnswerStream {
    stream: TextStream,
    stops: StopFilter,
    pub(super) reader: OutputReader,
    /// Log-probabilities of the tokens that are not sent yet.
    pub(super) logprobs: Vec<Logprob>,
    /// The stop string that was found.
    pub(super) stop: Option<String>,
}

impl AnswerStream {
    /// Creates an answer to the prompt, whose rendered text is `rendered`.
    pub(super) fn new(text: &TextModel, request: &GenerateRequest, rendered: &str, tools: Tools) -> Self {
        let reading = Reading { prompt: rendered, tools, thinking: request.thinking };
        Self {
            stream: TextStream::new(&[]),
            stops: StopFilter::new(&request.stop),
            reader: OutputReader::new(&text.dialect, reading),
            logprobs: Vec::new(),
            stop: None,
        }
    }

    /// Sets the tokens that precede the answer.
    pub(super) fn follow(&mut self, text: &TextModel, tokens: &[u32]) {
        // If the reader needs no marks, they are left out like all special tokens.
        self.stream = if self.reader.is_plain() {
            TextStream::new(tokens)
        } else {
            TextStream::with_markers(tokens, text.markers.clone())
        };
    }

    /// Adds a token, and sends as much text as possible.
    pub(super) fn push(&mut self, model: &Model, token: u32, sink: &dyn Sink) -> Result<Heard> {
        let text = self.stream.push(&model.text.tokenizer, token)?;
        let (text, stopped) = match self.stops.push(&text) {
            Passed::Text(text) => (text, false),
            Passed::Stopped { text, stop } => {
                self.stop = Some(stop);
                (text, true)
            }
        };
        let parts = self.reader.push(&text);
        let open = self.tell(parts, sink);
        Ok(match (open, stopped) {
            (false, _) => Heard::Gone,
            (true, true) => Heard::Stopped,
            (true, false) => Heard::More,
        })
    }

    /// Sends the text that was held back.
    pub(super) fn finish(&mut self, model: &Model, reason: FinishReason, sink: &dyn Sink) -> Result<()> {
        let rest = self.stream.finish(&model.text.tokenizer)?;
        let mut parts = Vec::new();
        // No text follows a stop string, and none is held back.
        if let Passed::Text(text) = self.stops.push(&rest) {
            let held = self.stops.finish();
            if reason != FinishReason::Stop || !held.is_empty() || !text.is_empty() {
                parts = self.reader.push(&(text + &held));
            }
        }
        parts.extend(self.reader.finish());
        self.tell(parts, sink);
        Ok(())
    }

    /// Sends parts of the answer; all output goes through here. Returns `false` if the listener is
    /// gone.
    fn tell(&mut self, parts: Vec<Part>, sink: &dyn Sink) -> bool {
        if parts.is_empty() {
            if self.logprobs.is_empty() {
                return sink.listener() != Listener::Gone;
            }
            return sink
                .send(GenerateEvent::Text { text: String::new(), logprobs: std::mem::take(&mut self.logprobs) });
        }
        parts.into_iter().all(|part| {
            let logprobs = std::mem::take(&mut self.logprobs);
            sink.send(match part {
                Part::Text(text) => GenerateEvent::Text { text, logprobs },
                Part::Thinking(text) => GenerateEvent::Thinking { text, logprobs },
                Part::ToolCall { name, arguments } => GenerateEvent::ToolCall { name, arguments, logprobs },
            })
        })
    }
}
