//! Handlers of Anthropic's API: they translate its documents to and from a call of a model.

use api::Refusal;
use api::anthropic::{ErrorResponse, Message, MessageStream, MessagesRequest, TokenCount};
use axum::extract::{FromRef, FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use protocol::GenerateRequest;
use serde::de::DeserializeOwned;

use crate::body;
use crate::budget::Budget;
use crate::call::Call;
use crate::clock;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::{attested, truncated, with_ignored};
use crate::openai::random_id;
use crate::parallel_generations::Choices;
use crate::sse::frames;

/// A failed request, reported in Anthropic's format.
#[derive(Debug)]
pub(crate) struct AnthropicFailure(Failed);

impl IntoResponse for AnthropicFailure {
    fn into_response(self) -> Response {
        let Failed { status, message } = self.0;
        if status.is_server_error() {
            tracing::warn!(status = status.as_u16(), "{message}");
        }
        (status, Json(ErrorResponse::new(status.as_u16(), message))).into_response()
    }
}

impl<E: Into<Failed>> From<E> for AnthropicFailure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

fn refused(refusal: &Refusal) -> AnthropicFailure {
    AnthropicFailure(Failed::new(StatusCode::BAD_REQUEST, refusal.to_string()))
}

/// The body of a request, read like [`body::Body`].
pub(crate) struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T>
where
    Budget: FromRef<S>,
{
    type Rejection = AnthropicFailure;

    async fn from_request(request: Request, state: &S) -> Result<Self, AnthropicFailure> {
        let body::Body(body) = body::Body::from_request(request, state).await?;
        Ok(Self(body))
    }
}

pub(crate) async fn messages(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<MessagesRequest>,
) -> Result<Response, AnthropicFailure> {
    let (name, streams, limits) = (request.model.clone(), request.streams(), request.limits());
    let (dialogue, demand) = request.translate().map_err(|refusal| refused(&refusal))?;
    let call = Call::begin(&daemon, &name, &demand).await?.of(&daemon, &caller);
    let ignored = call.ignored(&dialogue);
    let prompt = call.dialogue(dialogue)?.prompt(clock::now());
    let asked = call.request(&daemon, prompt, &demand);
    let digest = call.digest();
    let message = Message::begun(&random_id(), &name);
    let asked = vec![asked];
    let all = Choices::begin(call.ready_for(&daemon, &asked).await?, asked, &demand).await?;
    if streams {
        let (frames, response) = frames();
        let mut stream = MessageStream::new(message, limits);
        tokio::spawn(async move {
            if frames.send(&stream.begin()).await {
                all.tell(frames, |_, event| stream.event(event)).await;
            }
        });
        return Ok(with_ignored(attested(response, &digest), &ignored));
    }
    let answer = all.answers(1).await?.pop().unwrap_or_default();
    let dropped = answer.usage.truncated_tokens;
    let response = attested(Json(message.whole(answer, &limits)).into_response(), &digest);
    Ok(with_ignored(truncated(response, dropped), &ignored))
}

pub(crate) async fn count_tokens(
    State(daemon): State<Daemon>,
    Body(request): Body<MessagesRequest>,
) -> Result<Response, AnthropicFailure> {
    let name = request.model.clone();
    let dialogue = request.count().map_err(|refusal| refused(&refusal))?;
    let call = Call::begin(&daemon, &name, &api::GenerationOptions::default()).await?.aside();
    let prompt = call.dialogue(dialogue)?.prompt(clock::now());
    let input_tokens = call.ready(&daemon).await?.runner().count(&GenerateRequest::new(prompt)).await?;
    Ok(attested(Json(TokenCount { input_tokens }).into_response(), &call.digest()))
}
