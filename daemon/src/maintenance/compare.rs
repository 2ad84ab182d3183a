//! `/api/lode/diff`.

use api::lode::{DiffRequest, DiffResponse, LayerDiff, TensorDiff, TensorSide, ValueDiff};
use axum::Json;
use axum::extract::State;
use content::{Digest, Unwatched};
use library::Library;
use upkeep::Diff;

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::{blocking, reference};

pub(crate) async fn diff(
    State(daemon): State<Daemon>,
    Body(request): Body<DiffRequest>,
) -> Result<Json<DiffResponse>, Failed> {
    let (a, b) = (reference(&request.a, "")?, reference(&request.b, "")?);
    let work = move |library: &Library| {
        let ((a, _hold_a), (b, _hold_b)) = (library.find_held(&a)?, library.find_held(&b)?);
        let diff = upkeep::diff(library, &a, &b, request.values, &Unwatched)?;
        Ok(answer(a.name, b.name, diff))
    };
    Ok(Json(blocking(&daemon.library, work).await?))
}

fn answer(a: String, b: String, diff: Diff) -> DiffResponse {
    let text = |digest: Digest| digest.to_string();
    let layer = |layer: upkeep::LayerDiff| LayerDiff { name: layer.name, a: layer.a.map(text), b: layer.b.map(text) };
    DiffResponse {
        a,
        b,
        equal_tensors: diff.equal_tensors,
        tensors: diff.tensors.into_iter().map(tensor).collect(),
        layers: diff.layers.into_iter().map(layer).collect(),
        added_blobs: diff.added_blobs,
        added_bytes: diff.added_bytes,
    }
}

fn tensor(tensor: upkeep::TensorDiff) -> TensorDiff {
    let side =
        |side: upkeep::TensorSide| TensorSide { dtype: side.encoding.to_string(), shape: side.shape, size: side.size };
    let values = |values| match values {
        upkeep::ValueDiff::Computed { compared, max, rms, not_finite } => {
            ValueDiff::Computed { compared, max, rms, not_finite }
        }
        upkeep::ValueDiff::NotAvailable(reason) => ValueDiff::NotAvailable(reason),
    };
    TensorDiff { name: tensor.name, a: tensor.a.map(side), b: tensor.b.map(side), values: tensor.values.map(values) }
}
