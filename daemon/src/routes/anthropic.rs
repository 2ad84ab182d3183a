//! Anthropic's API.

use api::anthropic::{Message, MessageEvent, MessagesRequest, TokenCount};
use axum::http::Method;

use super::Route;
use crate::anthropic::{count_tokens, messages};
use crate::guard::Scope;
use crate::openapi::{Api, Operation};

/// A call that a model answers.
fn run(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Anthropic, Method::POST, path, summary).needs(Scope::Run).attested().fails(&[404, 503])
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        run("/v1/messages", "Lets a model answer a conversation")
            .takes::<MessagesRequest>()
            .gives::<Message>()
            .events::<MessageEvent>()
            .served_by(messages),
        run("/v1/messages/count_tokens", "Counts the tokens of a conversation")
            .takes::<MessagesRequest>()
            .gives::<TokenCount>()
            .served_by(count_tokens),
    ]
}
