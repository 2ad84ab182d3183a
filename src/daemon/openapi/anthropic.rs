//! The operations of Anthropic's API.

use api::anthropic::{Message, MessageEvent, MessagesRequest, TokenCount};
use axum::http::Method;

use super::operation::{Api, Operation};

/// A call that a model answers.
fn run(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Anthropic, Method::POST, path, summary).attested().fails(&[404, 503])
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        run("/v1/messages", "Lets a model answer a conversation")
            .takes::<MessagesRequest>()
            .gives::<Message>()
            .events::<MessageEvent>(),
        run("/v1/messages/count_tokens", "Says how many tokens a conversation is")
            .takes::<MessagesRequest>()
            .gives::<TokenCount>(),
    ]
}
