//! `/api/lode/markdown`.

use api::lode::{MarkdownRequest, MarkdownResponse};
use axum::Json;
use axum::extract::State;
use content::operation::OperationError;

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;

pub(crate) async fn markdown(
    State(daemon): State<Daemon>,
    Body(request): Body<MarkdownRequest>,
) -> Result<Json<MarkdownResponse>, Failed> {
    // A job, because grammars parse code and formulas, which takes time.
    let turn = daemon.readouts.turn().await?;
    let blocks = turn.run(move || web::markdown::render(&request.text)).await;
    let blocks = blocks.map_err(|e| OperationError::text(format!("the text cannot be read: {e}")))?;
    Ok(Json(MarkdownResponse { blocks }))
}
