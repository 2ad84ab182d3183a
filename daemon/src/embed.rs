//! `/api/embed`, and the older `/api/embeddings`.

use api::ollama::{EmbedRequest, EmbedResponse, EmbeddingsRequest, EmbeddingsResponse, demand};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use protocol::EmbedInput;

use crate::body::Body;
use crate::call::Call;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::generate::nanos;
use crate::headers::{attested, truncated, with_ignored};

pub(crate) async fn embed(State(daemon): State<Daemon>, Body(request): Body<EmbedRequest>) -> Result<Response, Failed> {
    let texts = request.texts().map_err(Failed::bad_request)?;
    let demand = demand(&request.options, request.keep_alive).map_err(Failed::bad_request)?;
    let call = Call::begin(&daemon, &request.model, &demand).await?.aside();
    let ready = call.ready(&daemon).await?;
    let model = call.name.clone();
    // A request without texts only loads the model.
    if texts.is_empty() {
        let answer = EmbedResponse { model, ..EmbedResponse::default() };
        return Ok(with_ignored(attested(Json(answer).into_response(), &call.digest()), &call.ignored_options()));
    }
    let asked = protocol::EmbedRequest {
        inputs: texts.into_iter().map(|text| EmbedInput::Text { text }).collect(),
        truncate: request.truncate.unwrap_or(true),
        prompt: request.prompt_name,
        dimensions: Some(request.dimensions).filter(|dimensions| *dimensions > 0),
        first: 0,
    };
    let (reply, ready) = call.embed(&daemon, ready, &asked).await?;
    let answer = EmbedResponse {
        model,
        embeddings: reply.embeddings,
        total_duration: nanos(ready.timing().now().total),
        load_duration: nanos(ready.timing().now().load),
        prompt_eval_count: reply.prompt_tokens.iter().sum(),
        prompt_truncated_count: reply.truncated_tokens,
    };
    let answer = truncated(attested(Json(answer).into_response(), &call.digest()), reply.truncated_tokens);
    Ok(with_ignored(answer, &call.ignored_options()))
}

pub(crate) async fn embeddings(
    State(daemon): State<Daemon>,
    Body(request): Body<EmbeddingsRequest>,
) -> Result<Response, Failed> {
    let demand = demand(&request.options, request.keep_alive).map_err(Failed::bad_request)?;
    let call = Call::begin(&daemon, &request.model, &demand).await?.aside();
    let ready = call.ready(&daemon).await?;
    let (mut embedding, mut dropped) = (Vec::new(), 0);
    if !request.prompt.is_empty() {
        let inputs = vec![EmbedInput::Text { text: request.prompt }];
        let asked = protocol::EmbedRequest { inputs, truncate: true, prompt: None, dimensions: None, first: 0 };
        let reply = ready.runner().embed(&asked).await?;
        embedding = reply.embeddings.into_iter().flatten().map(f64::from).collect();
        dropped = reply.truncated_tokens;
    }
    let answer = Json(EmbeddingsResponse { embedding }).into_response();
    Ok(with_ignored(truncated(attested(answer, &call.digest()), dropped), &call.ignored_options()))
}
