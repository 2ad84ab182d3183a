//! The operations of Ollama's API.

use api::lode::QuantizePlan;
use api::ollama::{
    ChatRequest, ChatResponse, CopyRequest, CreateRequest, DeleteRequest, DetokenizeRequest, DetokenizeResponse,
    EmbedRequest, EmbedResponse, EmbeddingsRequest, EmbeddingsResponse, GenerateRequest, GenerateResponse, Progress,
    PsResponse, PullRequest, PushLine, PushRequest, ShowRequest, ShowResponse, StatusResponse, TagsResponse,
    TokenizeRequest, TokenizeResponse, VersionResponse,
};
use axum::http::Method;

use super::operation::{Api, Operation};

fn operation(method: Method, path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Ollama, method, path, summary)
}

fn get(path: &'static str, summary: &'static str) -> Operation {
    operation(Method::GET, path, summary)
}

/// A call that a model answers.
fn run(path: &'static str, summary: &'static str) -> Operation {
    operation(Method::POST, path, summary).attested().fails(&[404, 503])
}

/// A call that changes which models there are.
fn change(path: &'static str, summary: &'static str) -> Operation {
    operation(Method::POST, path, summary).fails(&[404, 409, 507])
}

pub(super) fn operations() -> Vec<Operation> {
    let blob = "The digest of the blob: `sha256:` and 64 hexadecimal digits.";
    vec![
        get("/", "Says that the daemon runs").gives_bytes("text/plain"),
        get("/api/version", "The daemon's version").gives::<VersionResponse>(),
        get("/api/status", "Whether models may run elsewhere; they may not").gives::<StatusResponse>(),
        get("/api/tags", "Lists the models").gives::<TagsResponse>(),
        get("/api/ps", "Lists the models that are loaded").gives::<PsResponse>(),
        operation(Method::POST, "/api/show", "Describes a model")
            .takes::<ShowRequest>()
            .gives::<ShowResponse>()
            .attested()
            .fails(&[404]),
        change("/api/create", "Makes a model of files or of another model")
            .takes::<CreateRequest>()
            .gives::<Progress>()
            .gives::<QuantizePlan>()
            .lines::<Progress>(),
        change("/api/copy", "Gives a model another name").takes::<CopyRequest>().gives_nothing(200),
        operation(Method::DELETE, "/api/delete", "Removes a name of a model")
            .takes::<DeleteRequest>()
            .gives_nothing(200)
            .fails(&[404, 409]),
        change("/api/pull", "Fetches a model from a registry")
            .takes::<PullRequest>()
            .gives::<Progress>()
            .lines::<Progress>(),
        change("/api/push", "Sends a model to a registry")
            .takes::<PushRequest>()
            .gives::<Progress>()
            .lines::<Progress>()
            .lines::<PushLine>(),
        operation(Method::HEAD, "/api/blobs/{digest}", "Whether a blob is here")
            .parameter("path", "digest", blob)
            .gives_nothing(200)
            .fails(&[400, 404]),
        operation(Method::POST, "/api/blobs/{digest}", "Takes a blob for a create that follows")
            .parameter("path", "digest", blob)
            .takes_bytes("application/octet-stream")
            .gives_nothing(200)
            .gives_nothing(201)
            .fails(&[409, 507]),
        run("/api/generate", "Lets a model answer a prompt; without one it is loaded or unloaded")
            .takes::<GenerateRequest>()
            .gives::<GenerateResponse>()
            .lines::<GenerateResponse>(),
        run("/api/chat", "Lets a model answer a conversation; without one it is loaded or unloaded")
            .takes::<ChatRequest>()
            .gives::<ChatResponse>()
            .lines::<ChatResponse>(),
        run("/api/embed", "Turns texts into vectors").takes::<EmbedRequest>().gives::<EmbedResponse>(),
        run("/api/embeddings", "Turns a text into a vector; the older form")
            .takes::<EmbeddingsRequest>()
            .gives::<EmbeddingsResponse>(),
        run("/api/tokenize", "Cuts a text into the model's tokens")
            .takes::<TokenizeRequest>()
            .gives::<TokenizeResponse>(),
        run("/api/detokenize", "Puts the text of tokens together")
            .takes::<DetokenizeRequest>()
            .gives::<DetokenizeResponse>(),
    ]
}
