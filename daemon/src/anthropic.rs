//! Handlers of Anthropic's API: they translate its documents to and from a call of a model.

use api::anthropic::{ErrorResponse, Limits, Message, MessageStream, MessagesRequest, TokenCount};
use api::{CollectedAnswer, Refusal};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use protocol::{GenerateEvent, GenerateRequest};

use crate::body::body_refused_by;
use crate::call::{Call, Times};
use crate::chat::{Chat, ChatFormat, answer};
use crate::clock;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::attested;
use crate::openai::random_id;
use crate::remote_pictures::fetched;
use crate::sse;
use crate::stream::BodySender;

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

body_refused_by!(AnthropicFailure);

pub(crate) async fn messages(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<MessagesRequest>,
) -> Result<Response, AnthropicFailure> {
    let (model, streams, limits) = (request.model.clone(), request.streams(), request.limits());
    let (input, options) = request.translate().map_err(|refusal| refused(&refusal))?;
    let asked = Chat { model, input, options, choices: 1, streams };
    let answered = answer(&daemon, &caller, asked, |call| {
        let message = Message::begun(&random_id(), &call.name);
        Messages { stream: MessageStream::new(message.clone(), limits.clone()), message, limits }
    });
    Ok(answered.await?)
}

/// The answer as a message.
struct Messages {
    message: Message,
    limits: Limits,
    stream: MessageStream,
}

impl ChatFormat for Messages {
    fn body() -> (BodySender, Response) {
        sse::frames()
    }

    fn begin(&mut self) -> String {
        sse::text(&self.stream.begin())
    }

    fn event(&mut self, _choice: u32, event: GenerateEvent, _times: Times) -> String {
        sse::text(&self.stream.event(event))
    }

    fn whole(&mut self, mut answers: Vec<CollectedAnswer>, _times: Times) -> Response {
        let answer = answers.pop().unwrap_or_default();
        Json(self.message.clone().whole(answer, &self.limits)).into_response()
    }
}

pub(crate) async fn count_tokens(
    State(daemon): State<Daemon>,
    Body(request): Body<MessagesRequest>,
) -> Result<Response, AnthropicFailure> {
    let name = request.model.clone();
    let dialogue = request.count().map_err(|refusal| refused(&refusal))?;
    let call = Call::begin(&daemon, &name, &api::GenerationOptions::default()).await?.aside();
    let mut dialogue = call.with_own_messages(dialogue)?;
    let pictures = fetched(&daemon, std::mem::take(&mut dialogue.pictures)).await?;
    let request = GenerateRequest { pictures, ..GenerateRequest::new(dialogue.prompt(clock::now())) };
    let input_tokens = call.ready(&daemon).await?.runner().count(&request).await?;
    Ok(attested(Json(TokenCount { input_tokens }).into_response(), &call.digest()))
}
