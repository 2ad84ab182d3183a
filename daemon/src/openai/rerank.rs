//! `/v1/rerank`.

use api::rerank::{RerankRequest, RerankResponse};
use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::failure::{Body, OpenAiFailure, refused};
use crate::daemon::Daemon;
use crate::rerank::Ranking;

pub(crate) async fn rerank(
    State(daemon): State<Daemon>,
    Body(request): Body<RerankRequest>,
) -> Result<Response, OpenAiFailure> {
    let asked = request.translate().map_err(refused)?;
    let ranking = Ranking::of(&daemon, &request, &asked).await?;
    Ok(ranking.answer(Json(RerankResponse::new(&request, &ranking.reply))))
}
