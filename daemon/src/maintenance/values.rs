//! `/api/lode/values`.

use api::lode::{ValuesRequest, ValuesResponse};
use axum::Json;
use axum::extract::State;
use upkeep::Range;

use super::in_turn;
use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::reference;
use library::Library;

/// Number of histogram bins by default.
const BINS: u64 = 64;
/// Maximal number of bins.
const MOST_BINS: u64 = 512;

pub(crate) async fn values(
    State(daemon): State<Daemon>,
    Body(request): Body<ValuesRequest>,
) -> Result<Json<ValuesResponse>, Failed> {
    let bins = request.bins.unwrap_or(BINS);
    if !(1..=MOST_BINS).contains(&bins) {
        return Err(Failed::bad_request(format!("'bins' is {bins}, expected 1 to {MOST_BINS}")));
    }
    let name = reference(&request.model, "")?;
    let tensor = request.tensor;
    let work = move |library: &Library| {
        let (model, _hold) = library.find_held(&name)?;
        let values = upkeep::values(library, &model, &tensor, bins as usize)?;
        let of_range = |of: fn(&Range) -> f64| values.range.as_ref().map(of);
        Ok(ValuesResponse {
            dtype: values.encoding.to_string(),
            numbers: values.numbers,
            sampled: values.sampled,
            not_finite: values.not_finite,
            zeros: values.zeros,
            min: of_range(|range| range.min),
            max: of_range(|range| range.max),
            mean: of_range(|range| range.mean),
            deviation: of_range(|range| range.deviation),
            model: model.name,
            tensor,
            shape: values.shape,
            bins: values.bins,
        })
    };
    Ok(Json(in_turn(&daemon, work).await?))
}
