//! `/v1/models`.

use std::time::SystemTime;

use api::openai::{Model as Document, ModelList};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use manifests::ModelRef;

use super::failure::OpenAiFailure;
use super::seconds;
use crate::daemon::Daemon;
use crate::headers::attested;
use crate::model_documents::timestamp;
use crate::models::{blocking, find_named};
use library::{Library, Listed};

pub(crate) async fn list(State(daemon): State<Daemon>, headers: HeaderMap) -> Result<Json<ModelList>, OpenAiFailure> {
    let models = blocking(&daemon.library, Library::list).await?;
    let document = |listed: Listed| document(&listed.name, listed.modified, listed.name.clone(), &headers);
    Ok(Json(ModelList::new(models.into_iter().map(document).collect())))
}

pub(crate) async fn show(
    State(daemon): State<Daemon>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, OpenAiFailure> {
    let model = find_named(&daemon, &name).await?;
    let answer = Json(document(&model.name, model.modified, name, &headers)).into_response();
    Ok(attested(answer, model.manifest.digest()))
}

/// Returns the document of a model. Its id is the name that the client knows. Requests of
/// Anthropic's clients are recognized by their version header.
fn document(name: &str, modified: SystemTime, id: String, headers: &HeaderMap) -> Document {
    let repository = name.parse::<ModelRef>().map(|reference| reference.repository().to_owned());
    let owner = repository
        .unwrap_or_default()
        .rsplit_once('/')
        .map_or_else(|| "library".to_owned(), |(owner, _)| owner.to_owned());
    let document = Document::new(id, seconds(modified), owner);
    if headers.contains_key("anthropic-version") {
        return document.for_anthropic(timestamp(modified));
    }
    document
}
