//! `/v1/chat/completions`.

use std::time::SystemTime;

use api::openai::chat::{self, ChatCompletion, ChatRequest, ChatStream};
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
use crate::parallel_generations::{Choices, several};
use crate::sse::frames;

pub(crate) async fn chat(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, OpenAiFailure> {
    let name = request.model.clone();
    let (streams, with_usage, with_logprobs) = (request.streams(), request.wants_usage(), request.wants_logprobs());
    let count = request.choices().map_err(refused)?;
    let (dialogue, demand) = request.translate().map_err(refused)?;
    let call = Call::begin(&daemon, &name, &demand).await?.of(&daemon, &caller);
    let ignored = call.ignored(&dialogue);
    let prompt = call.dialogue(dialogue)?.prompt(clock::now());
    let asked = call.request(&daemon, prompt, &demand);
    let digest = call.digest();
    let head = chat::head(&random_id(), seconds(SystemTime::now()), &name, &digest.to_string());
    let ready = call.ready_for(&daemon, std::slice::from_ref(&asked)).await?;
    let all = Choices::begin(ready, several(&asked, count).collect(), &demand).await?;
    if streams {
        let (frames, response) = frames();
        let mut stream = ChatStream::new(head, count, with_usage, with_logprobs);
        tokio::spawn(async move {
            if frames.send(&stream.begin()).await {
                all.tell(frames, |choice, event| stream.event(choice, event)).await;
            }
        });
        return Ok(with_ignored(attested(response, &digest), &ignored));
    }
    let answers = all.answers(count as usize).await?;
    let dropped = answers.first().map_or(0, |answer| answer.usage.truncated_tokens);
    let document = ChatCompletion::new(head, answers, with_logprobs);
    let response = attested(Json(document).into_response(), &digest);
    Ok(with_ignored(truncated(response, dropped), &ignored))
}
