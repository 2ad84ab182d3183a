//! The API of llama.cpp's server, for the models of this daemon.
//!
//! That server has one model. A request without a model name uses the only loaded model, or else
//! the only model in the store.

use api::GenerationOptions;
use api::llama_server::{
    Completion, CompletionRequest, Health, InfillRequest, Props, Slot, Text, TokenizeRequest, Tokens,
};
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use library::{Capability, Library};
use protocol::Prompt;
use serde_json::{Map, json};

use crate::call::Call;
use crate::daemon::Daemon;
use crate::guard::Caller;
use crate::headers::attested;
use crate::models::{blocking, find_named};
use crate::openai::failure::{Body, OpenAiFailure, refused};
use crate::parallel_generations::Choices;
use crate::query;
use crate::sse;

pub(crate) async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

pub(crate) async fn completion(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, OpenAiFailure> {
    let (model, streams) = (request.model.clone(), request.stream);
    let (prompt, demand) = request.translate().map_err(refused)?;
    answer(&daemon, &caller, &model, (prompt, demand), streams).await
}

pub(crate) async fn infill(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<InfillRequest>,
) -> Result<Response, OpenAiFailure> {
    let (model, streams) = (request.completion.model.clone(), request.completion.stream);
    let (prompt, demand) = request.translate().map_err(refused)?;
    answer(&daemon, &caller, &model, (prompt, demand), streams).await
}

async fn answer(
    daemon: &Daemon,
    caller: &Caller,
    model: &str,
    (prompt, demand): (Prompt, GenerationOptions),
    streams: bool,
) -> Result<Response, OpenAiFailure> {
    let name = meant(daemon, model).await?;
    let call = Call::begin(daemon, &name, &demand).await?.of(daemon, caller);
    call.require_text("generate")?;
    if matches!(prompt, Prompt::Insert { .. }) {
        call.require(Capability::Insert)?;
    }
    let (asked, digest) = (vec![call.request(daemon, prompt, &demand)], call.digest());
    let all = Choices::begin(call.ready_for(daemon, &asked).await?, asked, &demand).await?;
    if streams {
        let (pieces, response) = sse::frames();
        tokio::spawn(all.tell(pieces, move |_, event| sse::text(&Completion::event(&name, event))));
        return Ok(attested(response, &digest));
    }
    let answer = all.answers(1, |_| ()).await?.pop().unwrap_or_default();
    Ok(attested(Json(Completion::whole(&name, answer)).into_response(), &digest))
}

pub(crate) async fn tokenize(
    State(daemon): State<Daemon>,
    Body(request): Body<TokenizeRequest>,
) -> Result<Json<Tokens>, OpenAiFailure> {
    let TokenizeRequest { model, content: text, add_special, parse_special } = request;
    let ready = Call::begin(&daemon, &meant(&daemon, &model).await?, &GenerationOptions::default())
        .await?
        .aside()
        .ready(&daemon)
        .await?;
    let asked = protocol::TokenizeRequest { text, add_special, parse_special: parse_special.unwrap_or(true) };
    Ok(Json(Tokens { tokens: ready.runner().tokenize(&asked).await?, ..Tokens::default() }))
}

pub(crate) async fn detokenize(
    State(daemon): State<Daemon>,
    Body(request): Body<Tokens>,
) -> Result<Json<Text>, OpenAiFailure> {
    let name = meant(&daemon, &request.model).await?;
    let ready = Call::begin(&daemon, &name, &GenerationOptions::default()).await?.aside().ready(&daemon).await?;
    Ok(Json(Text { content: ready.runner().detokenize(request.tokens).await? }))
}

pub(crate) async fn props(
    State(daemon): State<Daemon>,
    RawQuery(query): RawQuery,
) -> Result<Json<Props>, OpenAiFailure> {
    let named = query::value(query.as_deref(), "model").unwrap_or_default();
    let name = meant(&daemon, &named).await?;
    let model = find_named(&daemon, &name).await?;
    let digest = *model.manifest.digest();
    let loaded = daemon.scheduler.loaded().into_iter().find(|loaded| loaded.key.model == digest);
    let context = loaded.map_or_else(|| daemon.context(&model, None).tokens(), |loaded| loaded.reply.context);
    let template = blocking(&daemon.library, move |library| library.chat_template(&model)).await?;
    Ok(Json(Props {
        default_generation_settings: Map::from_iter([("n_ctx".to_owned(), json!(context))]),
        total_slots: daemon.settings.parallel,
        model_path: name,
        chat_template: template.unwrap_or_default(),
        build_info: format!("lode {}", env!("CARGO_PKG_VERSION")),
    }))
}

pub(crate) async fn slots(State(daemon): State<Daemon>) -> Json<Vec<Slot>> {
    let of = |loaded: scheduler::Loaded| {
        let slot = move |id| Slot {
            id,
            model: loaded.name.clone(),
            n_ctx: loaded.reply.context,
            is_processing: (id as usize) < loaded.active,
        };
        (0..loaded.reply.slots).map(slot).collect::<Vec<_>>()
    };
    Json(daemon.scheduler.loaded().into_iter().flat_map(of).collect())
}

/// Returns the name of the model that a request uses.
async fn meant(daemon: &Daemon, named: &str) -> Result<String, OpenAiFailure> {
    if !named.is_empty() {
        return Ok(named.to_owned());
    }
    if let [loaded] = &daemon.scheduler.loaded()[..] {
        return Ok(loaded.name.clone());
    }
    let mut names = blocking(&daemon.library, Library::list).await?.into_iter().map(|listed| listed.name);
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(refused(api::Refusal::new(
            "model",
            "set `model`: the default needs exactly one loaded model, or exactly one model in the store",
        ))),
    }
}
