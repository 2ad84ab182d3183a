//! Measurements of generations for `/metrics` and `/api/lode/running`.

use protocol::{FinishReason, Usage};

use crate::rates::Rates;

/// Counts one generation, however it ends. If it is dropped before its end, it counts as cancelled.
#[derive(Debug)]
pub(super) struct Meter {
    model: String,
    rates: Rates,
    /// Number of counted events; most of them are one token.
    words: u64,
    ended: bool,
}

impl Meter {
    /// Starts measuring a generation of a model.
    pub(super) fn new(model: String, rates: Rates) -> Self {
        Self { model, rates, words: 0, ended: false }
    }

    /// Records the first event, `seconds` after the arrival of the request.
    pub(super) fn first_word(&self, seconds: f64) {
        metrics::histogram!("lode_first_token_seconds", "model" => self.model.clone()).record(seconds);
    }

    /// Records an event with text.
    pub(super) fn word(&mut self) {
        self.words += 1;
        self.rates.add(0, 1);
    }

    /// Records the regular end.
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
        // Events do not match tokens exactly: text that was held back is counted at the end.
        let prompt = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        self.rates.add(prompt, usage.tokens.saturating_sub(self.words));
        if usage.tokens > 1 {
            let mean = usage.nanos as f64 / 1e9 / usage.tokens as f64;
            metrics::histogram!("lode_between_tokens_seconds", "model" => self.model.clone()).record(mean);
        }
    }

    /// Records that the runner failed or died.
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
