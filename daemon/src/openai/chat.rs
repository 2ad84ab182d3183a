//! `/v1/chat/completions`.

use std::time::SystemTime;

use api::CollectedAnswer;
use api::openai::Head;
use api::openai::chat::{self, ChatCompletion, ChatRequest, ChatStream};
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

pub(crate) async fn chat(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, OpenAiFailure> {
    let model = request.model.clone();
    let (streams, with_usage, with_logprobs) = (request.streams(), request.wants_usage(), request.wants_logprobs());
    let choices = request.choices().map_err(refused)?;
    let (input, options) = request.translate().map_err(refused)?;
    let asked = Chat { model, input, options, choices, streams };
    let answered = answer(&daemon, &caller, asked, |call| {
        let head = chat::head(&random_id(), seconds(SystemTime::now()), &call.name, &call.digest().to_string());
        let stream = ChatStream::new(head.clone(), choices, with_usage, with_logprobs);
        Completions { head, stream, with_logprobs }
    });
    Ok(answered.await?)
}

/// Answers as chat completions.
struct Completions {
    head: Head,
    stream: ChatStream,
    with_logprobs: bool,
}

impl ChatFormat for Completions {
    fn body() -> (BodySender, Response) {
        sse::frames()
    }

    fn begin(&mut self) -> String {
        sse::text(&self.stream.begin())
    }

    fn event(&mut self, choice: u32, event: GenerateEvent, _times: Times) -> String {
        sse::text(&self.stream.event(choice, event))
    }

    fn whole(&mut self, answers: Vec<CollectedAnswer>, _times: Times) -> Response {
        Json(ChatCompletion::new(self.head.clone(), answers, self.with_logprobs)).into_response()
    }
}
