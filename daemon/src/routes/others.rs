//! APIs of other servers, for clients that support only these: llama.cpp's server and LM Studio.

use api::llama_server::{
    Completion, CompletionRequest, Health, InfillRequest, Props, Slot, Text, TokenizeRequest, Tokens,
};
use api::lm_studio::{Model, Models};
use api::openai::chat::{ChatChunk, ChatCompletion, ChatRequest};
use api::openai::completions::{self, CompletionChunk};
use api::openai::{EmbeddingsRequest, EmbeddingsResponse};
use axum::http::Method;

use super::Route;
use crate::guard::Scope;
use crate::llama_server::{completion, detokenize, health, infill, props, slots, tokenize};
use crate::lm_studio;
use crate::openai::{chat, completions as texts, embeddings};
use crate::openapi::{Api, Operation};

fn look(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::OpenAi, Method::GET, path, summary).needs(Scope::Read)
}

/// A call that a model answers.
fn run(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::OpenAi, Method::POST, path, summary).needs(Scope::Run).fails(&[404, 503])
}

pub(super) fn routes() -> Vec<Route> {
    llama_server().into_iter().chain(lm_studio_routes()).collect()
}

fn llama_server() -> Vec<Route> {
    let model = "The model; by default the only loaded one, or else the only one in the store.";
    vec![
        look("/health", "Answers as llama.cpp's server does").gives::<Health>().served_by(health),
        look("/props", "Describes a model as llama.cpp's server does")
            .parameter("query", "model", model)
            .gives::<Props>()
            .fails(&[400, 404])
            .served_by(props),
        look("/slots", "Lists what is loaded as llama.cpp's server does").gives::<Vec<Slot>>().served_by(slots),
        run("/completion", "Lets a model go on with a text, as llama.cpp's server does")
            .takes::<CompletionRequest>()
            .gives::<Completion>()
            .events::<Completion>()
            .attested()
            .served_by(completion),
        run("/infill", "Lets a model fill a gap, as llama.cpp's server does")
            .takes::<InfillRequest>()
            .gives::<Completion>()
            .events::<Completion>()
            .attested()
            .served_by(infill),
        run("/tokenize", "Turns a text into tokens, as llama.cpp's server does")
            .takes::<TokenizeRequest>()
            .gives::<Tokens>()
            .served_by(tokenize),
        run("/detokenize", "Puts tokens together, as llama.cpp's server does")
            .takes::<Tokens>()
            .gives::<Text>()
            .served_by(detokenize),
    ]
}

fn lm_studio_routes() -> Vec<Route> {
    vec![
        look("/api/v0/models", "Lists the models as LM Studio does").gives::<Models>().served_by(lm_studio::list),
        look("/api/v0/models/{model}", "Describes a model as LM Studio does")
            .parameter("path", "model", "The name of the model; slashes may be left as they are.")
            .gives::<Model>()
            .fails(&[400, 404])
            .served_by(lm_studio::show)
            .at("/api/v0/models/{*model}"),
        run("/api/v0/chat/completions", "As `/v1/chat/completions`")
            .takes::<ChatRequest>()
            .gives::<ChatCompletion>()
            .events::<ChatChunk<'_>>()
            .attested()
            .served_by(chat::chat),
        run("/api/v0/completions", "As `/v1/completions`")
            .takes::<completions::CompletionRequest>()
            .gives::<completions::Completion>()
            .events::<CompletionChunk<'_>>()
            .attested()
            .served_by(texts::completions),
        run("/api/v0/embeddings", "As `/v1/embeddings`")
            .takes::<EmbeddingsRequest>()
            .gives::<EmbeddingsResponse>()
            .attested()
            .served_by(embeddings::embeddings),
    ]
}
