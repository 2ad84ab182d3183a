//! `/api/lode/markdown`.

use api::lode::{MarkdownRequest, MarkdownResponse};
use axum::Json;

use crate::body::Body;
use crate::error::Failed;

pub(crate) async fn markdown(Body(request): Body<MarkdownRequest>) -> Result<Json<MarkdownResponse>, Failed> {
    // Code and formulas are read by grammars, which takes its time.
    let blocks = tokio::task::spawn_blocking(move || web::markdown::render(&request.text)).await;
    let blocks = blocks.map_err(|e| anyhow::anyhow!("the text cannot be read: {e}"))?;
    Ok(Json(MarkdownResponse { blocks }))
}
