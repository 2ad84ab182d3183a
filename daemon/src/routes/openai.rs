//! `OpenAI`'s API.

use api::openai::chat::{ChatChunk, ChatCompletion, ChatRequest};
use api::openai::completions::{Completion, CompletionChunk, CompletionRequest};
use api::openai::responses::{Response, ResponseEvent, ResponsesRequest};
use api::openai::{EmbeddingsRequest, EmbeddingsResponse, Model, ModelList};
use api::rerank::{RerankRequest, RerankResponse};
use axum::http::Method;

use super::Route;
use crate::guard::Scope;
use crate::openai::{chat, completions, embeddings, models, rerank, responses};
use crate::openapi::{Api, Operation};

/// A call that a model answers.
fn run(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::OpenAi, Method::POST, path, summary).needs(Scope::Run).fails(&[404, 503])
}

fn look(path: &'static str, summary: &'static str) -> Operation {
    let version = "If present, models also have the fields of Anthropic's API.";
    Operation::new(Api::OpenAi, Method::GET, path, summary).needs(Scope::Read).parameter(
        "header",
        "anthropic-version",
        version,
    )
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        look("/v1/models", "Lists the models").gives::<ModelList>().served_by(models::list),
        look("/v1/models/{model}", "Describes a model")
            .parameter("path", "model", "The name of the model; slashes may be left as they are.")
            .gives::<Model>()
            .attested()
            .fails(&[400, 404])
            .served_by(models::show)
            .at("/v1/models/{*model}"),
        run("/v1/chat/completions", "Lets a model answer a conversation")
            .takes::<ChatRequest>()
            .gives::<ChatCompletion>()
            .events::<ChatChunk<'_>>()
            .attested()
            .served_by(chat::chat),
        run("/v1/completions", "Completes texts with a model")
            .takes::<CompletionRequest>()
            .gives::<Completion>()
            .events::<CompletionChunk<'_>>()
            .attested()
            .served_by(completions::completions),
        run("/v1/embeddings", "Turns texts into vectors")
            .takes::<EmbeddingsRequest>()
            .gives::<EmbeddingsResponse>()
            .attested()
            .served_by(embeddings::embeddings),
        run("/v1/responses", "Lets a model answer; nothing is kept for the next request")
            .takes::<ResponsesRequest>()
            .gives::<Response>()
            .events::<ResponseEvent<'_>>()
            .attested()
            .served_by(responses::responses),
        run("/v1/rerank", "Scores how well documents answer a query")
            .takes::<RerankRequest>()
            .gives::<RerankResponse>()
            .attested()
            .served_by(rerank::rerank),
    ]
}
