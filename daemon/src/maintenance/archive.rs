//! `/api/save` and `/api/load`.

use std::io;

use api::lode::{LoadResponse, LoadedModel, SaveRequest, SinceRequest};
use axum::Json;
use axum::body::Body as Bytes;
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use content::Digest;
use content::operation::OperationError;
use futures_util::StreamExt;
use manifests::ModelRef;

use crate::body::Body;
use crate::bridge::{self, ChannelReader, ChannelWriter};
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::{blocking, reference};
use crate::query;
use build::{Archive, Loaded, Since};

pub(crate) async fn save(State(daemon): State<Daemon>, Body(request): Body<SaveRequest>) -> Result<Response, Failed> {
    let models = request.models.iter().map(|name| reference(name, "")).collect::<Result<Vec<_>, _>>()?;
    let since = since(request.since)?;
    let turn = daemon.readouts.turn().await?;
    let archive = blocking(&daemon.library, move |library| Archive::plan(library, &models, &since)).await?;
    let size = archive.size();
    let (sender, receiver) = bridge::channel();
    // The job ends with the connection, because sending fails then.
    drop(turn.run(move || {
        let mut output = ChannelWriter::new(sender);
        if let Err(error) = archive.write(&mut output) {
            tracing::warn!("a save broke off: {error:#}");
            output.fail(io::Error::other(format!("{error:#}")));
        }
    }));
    let body = bridge::begun(receiver).await?;
    let headers = [(header::CONTENT_TYPE, "application/x-tar".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((headers, Bytes::from_stream(body)).into_response())
}

fn since(request: Option<SinceRequest>) -> Result<Since, Failed> {
    let digest = |text: &str| text.parse::<Digest>().map_err(|e| Failed::bad_request(e.to_string()));
    Ok(match request {
        None => Since::Nothing,
        Some(SinceRequest::Model(model)) => Since::Model(reference(&model, "")?),
        Some(SinceRequest::Archive { manifest, blobs }) => Since::Archive {
            manifest: digest(&manifest)?,
            blobs: blobs.iter().map(|blob| digest(blob)).collect::<Result<_, _>>()?,
        },
    })
}

/// Returns the URL parameter `name`: the name for the only model of the archive.
fn given_name(query: Option<&str>) -> Result<Option<ModelRef>, Failed> {
    let name = query::value(query, "name").filter(|name| !name.is_empty());
    let name: Option<ModelRef> = name.map(|name| name.parse()).transpose()?;
    if name.as_ref().is_some_and(|name| name.digest().is_some()) {
        return Err(Failed::bad_request("a loaded model needs a name with a tag, not a digest"));
    }
    Ok(name)
}

pub(crate) async fn load(
    State(daemon): State<Daemon>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Json<LoadResponse>, Failed> {
    let name = given_name(query.as_deref())?;
    let (sender, receiver) = bridge::channel();
    let turn = daemon.incoming.turn().await?;
    let library = daemon.library.clone();
    let work = turn.run(move || {
        let mut input = ChannelReader::new(receiver);
        let loaded = build::load(&library, &mut input, name.as_ref());
        input.drain();
        loaded
    });
    let send = async move {
        let mut stream = body.into_data_stream();
        while let Some(piece) = stream.next().await {
            let broken = piece.is_err();
            let piece = piece.map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, BrokeOff(error)));
            if sender.send(piece).await.is_err() || broken {
                return;
            }
        }
    };
    let ((), loaded) = tokio::join!(send, work);
    let loaded = loaded.map_err(|e| OperationError::text(format!("the load ended unexpectedly: {e}")))??;
    Ok(Json(answer(loaded)))
}

fn answer(loaded: Loaded) -> LoadResponse {
    let model = |(name, digest): (ModelRef, Digest)| LoadedModel { name: name.to_string(), digest: digest.to_string() };
    LoadResponse {
        models: loaded.models.into_iter().map(model).collect(),
        new_blobs: loaded.new.blobs,
        new_bytes: loaded.new.bytes,
        shared_blobs: loaded.shared.blobs,
        shared_bytes: loaded.shared.bytes,
    }
}

/// The client disconnected, or the connection failed.
#[derive(Debug, thiserror::Error)]
#[error("the upload broke off: {0}")]
struct BrokeOff(axum::Error);
