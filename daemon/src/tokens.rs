//! `/api/tokenize` and `/api/detokenize`: conversion between text and the model's tokens.

use api::ollama::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse, demand};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::body::Body;
use crate::call::Call;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::generate::nanos;
use crate::headers::attested;

pub(crate) async fn tokenize(
    State(daemon): State<Daemon>,
    Body(request): Body<TokenizeRequest>,
) -> Result<Response, Failed> {
    let Some(text) = request.content.or(request.text) else {
        return Err(Failed::bad_request("content is required"));
    };
    let demand = demand(&request.options, request.keep_alive).map_err(Failed::bad_request)?;
    let call = Call::begin(&daemon, &request.model, &demand).await?.aside();
    let ready = call.ready(&daemon).await?;
    let (add_special, parse_special) = (request.add_special, request.parse_special.unwrap_or(true));
    let tokens = ready.runner().tokenize(&protocol::TokenizeRequest { text, add_special, parse_special }).await?;
    let answer = TokenizeResponse {
        model: call.name.clone(),
        tokens,
        total_duration: nanos(ready.timing().now().total),
        load_duration: nanos(ready.timing().now().load),
    };
    Ok(attested(Json(answer).into_response(), &call.digest()))
}

pub(crate) async fn detokenize(
    State(daemon): State<Daemon>,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Response, Failed> {
    let demand = demand(&request.options, request.keep_alive).map_err(Failed::bad_request)?;
    let call = Call::begin(&daemon, &request.model, &demand).await?.aside();
    let ready = call.ready(&daemon).await?;
    let answer = DetokenizeResponse {
        model: call.name.clone(),
        content: ready.runner().detokenize(request.tokens).await?,
        total_duration: nanos(ready.timing().now().total),
        load_duration: nanos(ready.timing().now().load),
    };
    Ok(attested(Json(answer).into_response(), &call.digest()))
}
