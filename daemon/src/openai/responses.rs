//! `/v1/responses`.

use std::time::SystemTime;

use api::CollectedAnswer;
use api::openai::responses::{Response as Document, ResponseStream, ResponsesRequest};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use protocol::GenerateEvent;

use super::failure::{Body, OpenAiFailure, refused};
use super::{random_id, seconds};
use crate::call::Times;
use crate::chat::{Chat, ChatFormat, answer};
use crate::daemon::Daemon;
use crate::guard::Caller;
use crate::sse;
use crate::stream::BodySender;

pub(crate) async fn responses(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ResponsesRequest>,
) -> Result<Response, OpenAiFailure> {
    let (model, streams) = (request.model.clone(), request.streams());
    let (input, options, echo) = request.translate().map_err(refused)?;
    let asked = Chat { model, input, options, choices: 1, streams };
    let answered = answer(&daemon, &caller, asked, |call| {
        Responses(ResponseStream::new(Document::new(&random_id(), seconds(SystemTime::now()), call.name.clone(), echo)))
    });
    Ok(answered.await?)
}

/// The answer as a response. Its items are built from the events, also if it does not stream.
struct Responses(ResponseStream);

impl ChatFormat for Responses {
    fn body() -> (BodySender, Response) {
        sse::frames()
    }

    fn begin(&mut self) -> String {
        sse::text(&self.0.begin())
    }

    fn observe(&mut self, event: &GenerateEvent) {
        self.0.event(event.clone());
    }

    fn event(&mut self, _choice: u32, event: GenerateEvent, _times: Times) -> String {
        sse::text(&self.0.event(event))
    }

    fn whole(&mut self, _answers: Vec<CollectedAnswer>, _times: Times) -> Response {
        Json(self.0.response()).into_response()
    }
}
