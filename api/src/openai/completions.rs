//! `/v1/completions`: continuation of a text, without a chat template.

mod answer;
mod request;
mod stream;

pub use answer::Completion;
pub use request::{CompletionPrompt, CompletionRequest, Texts};
pub use stream::{CompletionChunk, CompletionStream};

use protocol::FinishReason;

use super::Head;

/// Creates the fields that all documents of a response share. `id` is random; `fingerprint` is the
/// digest of the model.
pub fn head(id: &str, created: u64, model: &str, fingerprint: &str) -> Head {
    Head {
        id: format!("cmpl-{id}"),
        object: "text_completion",
        created,
        model: model.to_owned(),
        system_fingerprint: fingerprint.to_owned(),
    }
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::Repetition => "length",
        FinishReason::Stop => "stop",
    }
}

#[cfg(test)]
mod tests;
