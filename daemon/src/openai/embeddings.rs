//! `/v1/embeddings`.

use api::GenerationOptions;
use api::openai::{EmbeddingsRequest, EmbeddingsResponse};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::failure::{Body, OpenAiFailure, refused};
use crate::call::Call;
use crate::daemon::Daemon;
use crate::headers::{attested, truncated};

pub(crate) async fn embeddings(
    State(daemon): State<Daemon>,
    Body(request): Body<EmbeddingsRequest>,
) -> Result<Response, OpenAiFailure> {
    let name = request.model.clone();
    let demand = GenerationOptions { keep_alive: request.keep_alive, ..GenerationOptions::default() };
    let (asked, encoding) = request.translate().map_err(refused)?;
    let call = Call::begin(&daemon, &name, &demand).await?.aside();
    let (reply, _) = call.embed(&daemon, call.ready(&daemon).await?, &asked).await?;
    let dropped = reply.truncated_tokens;
    let answer = Json(EmbeddingsResponse::new(name, reply, encoding)).into_response();
    Ok(truncated(attested(answer, &call.digest()), dropped))
}
