//! The text of an answer on its way out: whole characters, held back where it may begin a stop string.

use anyhow::Result;
use prompt::stop::Passed;
use prompt::{StopFilter, TextStream};
use protocol::{FinishReason, GenerateEvent, GenerateRequest, Logprob};

use super::Sink;
use crate::engine::Listener;
use crate::model::Model;

/// What happened to a token's text.
pub(super) enum Heard {
    /// It goes on.
    More,
    /// A stop string was found.
    Stopped,
    /// Nobody listens any more.
    Gone,
}

/// An answer that is being told.
pub(super) struct Answer {
    stream: TextStream,
    stops: StopFilter,
    /// Of the tokens that were not told yet.
    pub(super) logprobs: Vec<Logprob>,
}

impl Answer {
    /// An answer that goes on after the tokens of the prompt.
    pub(super) fn new(request: &GenerateRequest, prompt: &[u32]) -> Self {
        Self { stream: TextStream::new(prompt), stops: StopFilter::new(&request.stop), logprobs: Vec::new() }
    }

    /// Takes a token, and tells what of its text can be told.
    pub(super) fn push(&mut self, model: &Model, token: u32, sink: &dyn Sink) -> Result<Heard> {
        let text = self.stream.push(&model.text.tokenizer, token)?;
        let (text, stopped) = match self.stops.push(&text) {
            Passed::Text(text) => (text, false),
            Passed::Stopped(text) => (text, true),
        };
        let open = self.tell(text, sink);
        Ok(match (open, stopped) {
            (false, _) => Heard::Gone,
            (true, true) => Heard::Stopped,
            (true, false) => Heard::More,
        })
    }

    /// Tells what was held back.
    pub(super) fn finish(&mut self, model: &Model, reason: FinishReason, sink: &dyn Sink) -> Result<()> {
        let rest = self.stream.finish(&model.text.tokenizer)?;
        // After a stop string nothing follows, and nothing is held.
        if let Passed::Text(text) = self.stops.push(&rest) {
            let held = self.stops.finish();
            if reason == FinishReason::Length || !held.is_empty() || !text.is_empty() {
                self.tell(text + &held, sink);
            }
        }
        Ok(())
    }

    /// The one place where text goes out; `false` where nobody listens any more.
    fn tell(&mut self, text: String, sink: &dyn Sink) -> bool {
        if text.is_empty() && self.logprobs.is_empty() {
            return sink.listener() != Listener::Gone;
        }
        sink.send(GenerateEvent::Text { text, logprobs: std::mem::take(&mut self.logprobs) })
    }
}
