//! `/v1/completions`.

use std::time::SystemTime;

use api::openai::Head;
use api::openai::completions::{self, Completion, CompletionPrompt, CompletionRequest, CompletionStream};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use protocol::Prompt;

use super::failure::{Body, OpenAiFailure, refused};
use super::{random_id, seconds};
use crate::call::{Call, Ready};
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::{attested, truncated, with_ignored};
use crate::parallel_generations::{Choices, several};
use crate::sse;
use library::Capability;

pub(crate) async fn completions(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, OpenAiFailure> {
    let name = request.model.clone();
    let (streams, with_usage, with_logprobs) = (request.streams(), request.wants_usage(), request.wants_logprobs());
    let count = request.choices().map_err(refused)?;
    let (prompts, demand) = request.translate().map_err(refused)?;
    let call = Call::begin(&daemon, &name, &demand).await?.of(&daemon, &caller);
    call.require_text("generate")?;
    if prompts.iter().any(|prompt| matches!(prompt.prompt, Prompt::Insert { .. })) {
        call.require(Capability::Insert)?;
    }
    let (digest, ignored) = (call.digest(), call.ignored_options());
    let head = completions::head(&random_id(), seconds(SystemTime::now()), &name, &digest.to_string());
    let each: Vec<_> = prompts.iter().map(|prompt| call.request(&daemon, prompt.prompt.clone(), &demand)).collect();
    let ready = call.ready_for(&daemon, &each).await?;
    let mut before = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        before.push(echo(&ready, prompt).await?);
    }
    let requests = each.into_iter().flat_map(|asked| several(asked, count)).collect();
    let all = Choices::begin(ready, requests, &demand).await?;
    if streams {
        let stream = CompletionStream::new(head, before.len(), count, with_usage, with_logprobs);
        return Ok(with_ignored(attested(streamed(all, stream, before, count), &digest), &ignored));
    }
    Ok(with_ignored(attested(whole(all, head, before, count, with_logprobs).await?, &digest), &ignored))
}

/// Returns the text of the prompt if the response must contain it.
async fn echo(ready: &Ready, prompt: &CompletionPrompt) -> Result<String, Failed> {
    if !prompt.echo {
        return Ok(String::new());
    }
    match &prompt.prompt {
        Prompt::Text { text } => Ok(text.clone()),
        Prompt::Insert { prefix, .. } => Ok(prefix.clone()),
        Prompt::Tokens { tokens } => Ok(ready.runner().detokenize(tokens.clone()).await?),
        // A completion request never has a chat prompt.
        Prompt::Chat(_) => Ok(String::new()),
    }
}

fn streamed(all: Choices, mut stream: CompletionStream, before: Vec<String>, count: u32) -> Response {
    let (frames, response) = sse::frames();
    tokio::spawn(async move {
        let told = (0..).zip(before).filter(|(_, text)| !text.is_empty());
        let all_told = told.flat_map(|(prompt, text): (u32, String)| {
            (prompt * count..(prompt + 1) * count).map(move |choice| (choice, text.clone()))
        });
        let begin: Vec<_> = all_told.map(|(choice, text)| stream.before(choice, text)).collect();
        if frames.send(sse::text(&begin)).await {
            all.tell(frames, |choice, event| sse::text(&stream.event(choice, event))).await;
        }
    });
    response
}

async fn whole(
    all: Choices,
    head: Head,
    before: Vec<String>,
    count: u32,
    with_logprobs: bool,
) -> Result<Response, Failed> {
    let answers = all.answers(before.len() * count as usize, |_| ()).await?;
    let per_prompt = answers.iter().step_by(count as usize);
    let dropped = per_prompt.map(|answer| answer.usage.truncated_tokens).sum();
    let before = before.into_iter().flat_map(|text| std::iter::repeat_n(text, count as usize));
    let document = Completion::new(head, before.zip(answers).collect(), count, with_logprobs);
    Ok(truncated(Json(document).into_response(), dropped))
}
