//! Ollama's API.

use api::lode::QuantizePlan;
use api::ollama::{
    ChatRequest, ChatResponse, CopyRequest, CreateRequest, DeleteRequest, DetokenizeRequest, DetokenizeResponse,
    EmbedRequest, EmbedResponse, EmbeddingsRequest, EmbeddingsResponse, GenerateRequest, GenerateResponse, Progress,
    PsResponse, PullRequest, PushLine, PushRequest, ShowRequest, ShowResponse, StatusResponse, TagsResponse,
    TokenizeRequest, TokenizeResponse, VersionResponse,
};
use api::rerank::{RerankRequest, TimedRerankResponse};
use axum::http::Method;

use super::Route;
use crate::guard::Scope;
use crate::openapi::{Api, Operation};
use crate::{cloud, create, embed, generate, models, rerank, tokens, transfer, uploads};

pub(super) fn routes() -> Vec<Route> {
    let mut all = looks();
    all.extend(changes());
    all.extend(blobs());
    all.extend(runs());
    all.extend(cloud());
    all
}

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

/// A call that changes the set of models.
fn change(path: &'static str, summary: &'static str) -> Operation {
    operation(Method::POST, path, summary).needs(Scope::Write).fails(&[404, 409, 507])
}

fn looks() -> Vec<Route> {
    vec![
        get("/", "Says that the daemon runs")
            .gives_bytes("text/plain")
            .gives_bytes("text/html")
            .served_by(models::root),
        get("/api/version", "The daemon's version").gives::<VersionResponse>().served_by(models::version),
        get("/api/status", "Whether cloud models are enabled; they never are")
            .needs(Scope::Read)
            .gives::<StatusResponse>()
            .served_by(cloud::status),
        get("/api/tags", "Lists the models: all, the newest first, or a page, sorted by name")
            .needs(Scope::Read)
            .parameter("query", "limit", "Maximum number of models, from 1 to 1000.")
            .parameter("query", "after", "`next` of the page before, or the name of a model.")
            .parameter("query", "q", "Text in the names of the models.")
            .gives::<TagsResponse>()
            .served_by(models::tags),
        get("/api/ps", "Lists the models that are loaded")
            .needs(Scope::Read)
            .gives::<PsResponse>()
            .served_by(models::ps),
        operation(Method::POST, "/api/show", "Describes a model")
            .needs(Scope::Read)
            .takes::<ShowRequest>()
            .gives::<ShowResponse>()
            .attested()
            .fails(&[404])
            .served_by(models::show),
    ]
}

fn changes() -> Vec<Route> {
    vec![
        change("/api/create", "Creates a model from files or from another model")
            .takes::<CreateRequest>()
            .gives::<Progress>()
            .gives::<QuantizePlan>()
            .lines::<Progress>()
            .served_by(create::create),
        change("/api/copy", "Gives a model another name")
            .takes::<CopyRequest>()
            .gives_nothing(200)
            .served_by(models::copy),
        operation(Method::DELETE, "/api/delete", "Removes a name of a model")
            .needs(Scope::Write)
            .takes::<DeleteRequest>()
            .gives_nothing(200)
            .fails(&[404, 409])
            .served_by(models::delete),
        change("/api/pull", "Fetches a model from a registry")
            .takes::<PullRequest>()
            .gives::<Progress>()
            .lines::<Progress>()
            .served_by(transfer::pull),
        change("/api/push", "Sends a model to a registry")
            .takes::<PushRequest>()
            .gives::<Progress>()
            .lines::<Progress>()
            .lines::<PushLine>()
            .served_by(transfer::push),
    ]
}

fn blobs() -> Vec<Route> {
    let digest = "The digest of the blob: `sha256:` and 64 hexadecimal digits.";
    vec![
        operation(Method::HEAD, "/api/blobs/{digest}", "Checks whether the store has a blob")
            .needs(Scope::Read)
            .parameter("path", "digest", digest)
            .gives_nothing(200)
            .fails(&[400, 404])
            .served_by(uploads::exists),
        operation(Method::POST, "/api/blobs/{digest}", "Takes a blob for a create that follows")
            .needs(Scope::Write)
            .parameter("path", "digest", digest)
            .takes_bytes("application/octet-stream")
            .gives_nothing(200)
            .gives_nothing(201)
            .fails(&[409, 507])
            .served_by(uploads::upload),
    ]
}

fn runs() -> Vec<Route> {
    vec![
        run("/api/generate", "Lets a model answer a prompt; without one it is loaded or unloaded")
            .needs(Scope::Run)
            .takes::<GenerateRequest>()
            .gives::<GenerateResponse>()
            .lines::<GenerateResponse>()
            .served_by(generate::generate),
        run("/api/chat", "Lets a model answer a conversation; without one it is loaded or unloaded")
            .needs(Scope::Run)
            .takes::<ChatRequest>()
            .gives::<ChatResponse>()
            .lines::<ChatResponse>()
            .served_by(generate::chat),
        run("/api/embed", "Computes embeddings of texts")
            .needs(Scope::Run)
            .takes::<EmbedRequest>()
            .gives::<EmbedResponse>()
            .served_by(embed::embed),
        run("/api/embeddings", "Turns a text into a vector; the older form")
            .needs(Scope::Run)
            .takes::<EmbeddingsRequest>()
            .gives::<EmbeddingsResponse>()
            .served_by(embed::embeddings),
        run("/api/rerank", "Scores how well documents answer a query; not Ollama's")
            .needs(Scope::Run)
            .takes::<RerankRequest>()
            .gives::<TimedRerankResponse>()
            .served_by(rerank::rerank),
        run("/api/tokenize", "Cuts a text into the model's tokens")
            .needs(Scope::Run)
            .takes::<TokenizeRequest>()
            .gives::<TokenizeResponse>()
            .served_by(tokens::tokenize),
        run("/api/detokenize", "Converts tokens to text")
            .needs(Scope::Run)
            .takes::<DetokenizeRequest>()
            .gives::<DetokenizeResponse>()
            .served_by(tokens::detokenize),
    ]
}

/// Services of ollama.com; every method returns 501.
fn cloud() -> Vec<Route> {
    let paths = [
        "/api/me",
        "/api/signout",
        "/api/user/keys/{key}",
        "/api/web_search",
        "/api/web_fetch",
        "/api/experimental/{*rest}",
    ];
    paths.map(|path| Route::for_any_method(path, Scope::Read, cloud::absent)).into()
}
