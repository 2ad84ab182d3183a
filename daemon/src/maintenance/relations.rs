//! `/api/lode/sharing` and `/api/lode/lineage`.

use api::lode::{Adapter, LineageResponse, ModelRequest, Relative, SharedBlob, SharingModel, SharingResponse};
use axum::Json;
use axum::extract::State;
use library::Listed;

use super::in_turn;
use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::find_named;

pub(crate) async fn sharing(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<SharingResponse>, Failed> {
    let model = find_named(&daemon, &request.model).await?;
    let (name, digest) = (model.name.clone(), model.manifest.digest().to_string());
    let found = in_turn(&daemon, move |library| upkeep::sharing(library, &model)).await?;
    let of_model =
        |model: upkeep::SharingModel| SharingModel { name: model.name, blobs: model.blobs, bytes: model.bytes };
    let of_blob = |blob: upkeep::SharedBlob| SharedBlob {
        digest: blob.digest.to_string(),
        models: blob.models,
        some: blob.some.into_iter().map(|place| place as u64).collect(),
    };
    Ok(Json(SharingResponse {
        model: name,
        digest,
        models: found.models.into_iter().map(of_model).collect(),
        blobs: found.blobs.into_iter().map(of_blob).collect(),
    }))
}

pub(crate) async fn lineage(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<LineageResponse>, Failed> {
    let model = find_named(&daemon, &request.model).await?;
    let (name, digest) = (model.name.clone(), model.manifest.digest().to_string());
    let found = in_turn(&daemon, move |library| library.lineage(&model)).await?;
    let adapter =
        |(name, digest, bytes): (String, content::Digest, u64)| Adapter { name, digest: digest.to_string(), bytes };
    Ok(Json(LineageResponse {
        model: name,
        digest,
        base: found.base.map(|base| base.to_string()),
        bases: found.bases.into_iter().map(relative).collect(),
        adapters: found.adapters.into_iter().map(adapter).collect(),
        derived: found.derived.into_iter().map(relative).collect(),
    }))
}

fn relative(listed: Listed) -> Relative {
    Relative {
        name: listed.name,
        digest: listed.summary.digest.to_string(),
        quantization: listed.summary.quantization.clone(),
        bytes: listed.summary.size,
    }
}
