//! `/v1/responses`.

use std::time::SystemTime;

use api::openai::responses::{Response as Document, ResponseStream, ResponsesRequest};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::failure::{Body, OpenAiFailure, refused};
use super::{random_id, seconds};
use crate::call::Call;
use crate::clock;
use crate::daemon::Daemon;
use crate::guard::Caller;
use crate::headers::{attested, truncated, with_ignored};
use crate::parallel_generations::Choices;
use crate::sse::frames;

pub(crate) async fn responses(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ResponsesRequest>,
) -> Result<Response, OpenAiFailure> {
    let (name, streams) = (request.model.clone(), request.streams());
    let (dialogue, demand, echo) = request.translate().map_err(refused)?;
    let call = Call::begin(&daemon, &name, &demand).await?.of(&daemon, &caller);
    let ignored = call.ignored(&dialogue);
    let prompt = call.dialogue(dialogue)?.prompt(clock::now());
    let asked = call.request(&daemon, prompt, &demand);
    let digest = call.digest();
    let document = Document::new(&random_id(), seconds(SystemTime::now()), name, echo);
    let mut stream = ResponseStream::new(document);
    let asked = vec![asked];
    let mut all = Choices::begin(call.ready_for(&daemon, &asked).await?, asked, &demand).await?;
    if streams {
        let (frames, response) = frames();
        tokio::spawn(async move {
            if frames.send(&stream.begin()).await {
                all.tell(frames, |_, event| stream.event(event)).await;
            }
        });
        return Ok(with_ignored(attested(response, &digest), &ignored));
    }
    while let Some((_, event)) = all.next().await {
        stream.event(event?);
    }
    let dropped = stream.response().usage.and_then(|usage| usage.input_tokens_details.truncated_tokens);
    let answer = Json(stream.response()).into_response();
    let answer = truncated(attested(answer, &digest), dropped.unwrap_or(0));
    Ok(with_ignored(answer, &ignored))
}
