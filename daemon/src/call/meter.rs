//! What `/metrics` tells about generations.

use protocol::{FinishReason, Usage};

/// Counts a generation once, however it ends. One that is dropped before its end was cancelled.
#[derive(Debug)]
pub(super) struct Meter {
    model: String,
    ended: bool,
}

impl Meter {
    /// A generation of a model begins.
    pub(super) fn new(model: String) -> Self {
        Self { model, ended: false }
    }

    /// It has said its first word, so many seconds after its request came.
    pub(super) fn first_word(&self, seconds: f64) {
        metrics::histogram!("lode_first_token_seconds", "model" => self.model.clone()).record(seconds);
    }

    /// It went to its end.
    pub(super) fn done(&mut self, reason: FinishReason, usage: &Usage) {
        self.end(match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Repetition => "repetition",
        });
        for (kind, tokens) in
            [("prompt", usage.prompt_tokens), ("cached", usage.cached_tokens), ("generated", usage.tokens)]
        {
            metrics::counter!("lode_tokens_total", "model" => self.model.clone(), "kind" => kind).increment(tokens);
        }
        if usage.tokens > 1 {
            let mean = usage.nanos as f64 / 1e9 / usage.tokens as f64;
            metrics::histogram!("lode_between_tokens_seconds", "model" => self.model.clone()).record(mean);
        }
    }

    /// The runner gave up or died.
    pub(super) fn failed(&mut self) {
        self.end("error");
    }

    fn end(&mut self, how: &'static str) {
        if !std::mem::replace(&mut self.ended, true) {
            metrics::counter!("lode_generations_total", "model" => self.model.clone(), "end" => how).increment(1);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.end("cancelled");
    }
}
