//! The operations of `OpenAI`'s API.

use api::openai::chat::{ChatChunk, ChatCompletion, ChatRequest};
use api::openai::completions::{Completion, CompletionChunk, CompletionRequest};
use api::openai::responses::{Response, ResponseEvent, ResponsesRequest};
use api::openai::{EmbeddingsRequest, EmbeddingsResponse, Model, ModelList, RerankRequest};
use axum::http::Method;

use super::operation::{Api, Operation};

/// A call that a model answers.
fn run(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::OpenAi, Method::POST, path, summary).fails(&[404, 503])
}

pub(super) fn operations() -> Vec<Operation> {
    let version = "Where a client sends it, models are described in Anthropic's words too.";
    vec![
        Operation::new(Api::OpenAi, Method::GET, "/v1/models", "Lists the models")
            .parameter("header", "anthropic-version", version)
            .gives::<ModelList>(),
        Operation::new(Api::OpenAi, Method::GET, "/v1/models/{model}", "Describes a model")
            .parameter("path", "model", "The name of the model; slashes may be left as they are.")
            .parameter("header", "anthropic-version", version)
            .gives::<Model>()
            .attested()
            .fails(&[400, 404]),
        run("/v1/chat/completions", "Lets a model answer a conversation")
            .takes::<ChatRequest>()
            .gives::<ChatCompletion>()
            .events::<ChatChunk<'_>>()
            .attested(),
        run("/v1/completions", "Lets a model go on with texts")
            .takes::<CompletionRequest>()
            .gives::<Completion>()
            .events::<CompletionChunk<'_>>()
            .attested(),
        run("/v1/embeddings", "Turns texts into vectors")
            .takes::<EmbeddingsRequest>()
            .gives::<EmbeddingsResponse>()
            .attested(),
        run("/v1/responses", "Lets a model answer; nothing is kept for the next request")
            .takes::<ResponsesRequest>()
            .gives::<Response>()
            .events::<ResponseEvent<'_>>()
            .attested(),
        run("/v1/rerank", "Says that no model here can rerank").takes::<RerankRequest>(),
    ]
}
