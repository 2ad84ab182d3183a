//! `/api/generate` and `/api/chat`.

use std::time::SystemTime;

use api::ChatInput;
use api::ollama::{AnswerLines, ChatRequest, Endpoint, GenerateRequest, Line, Moment};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use library::Capability;
use protocol::{GenerateEvent, Prompt};

use crate::body::Body;
use crate::call::{Call, Generation, Times, message};
use crate::clock;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::{attested, truncated, with_ignored};
use crate::model_documents::timestamp;
use crate::openai::random_id;
use crate::stream::{Lines, lines};

pub(crate) async fn generate(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, Failed> {
    let how = How { streams: request.stream.unwrap_or(true), render_only: request.debug_render_only };
    let demand = request.demand().map_err(Failed::bad_request)?;
    let before = request.before().map_err(Failed::bad_request)?;
    let call = Call::begin(&daemon, &request.model, &demand).await?.of(&daemon, &caller);
    let lines = answer(&call, Endpoint::Generate);
    if request.prompt.is_empty() && call.wants_no_keeping() {
        return Ok(unload(&daemon, &call, &lines));
    }
    call.require_text("generate")?;
    let think = call.thinking(request.think, false)?;
    if !request.suffix.is_empty() {
        call.require(Capability::Insert)?;
    }
    if request.prompt.is_empty() {
        return load(&daemon, &call, &lines).await;
    }
    let tell_tokens = !request.raw;
    let prompt = if request.raw {
        Prompt::Text { text: request.prompt }
    } else if request.suffix.is_empty() {
        let mut messages = if before.is_empty() {
            call.opening(request.system)?
        } else {
            // The tokens of `before` already contain the model's messages.
            request.system.into_iter().filter(|text| !text.is_empty()).map(|text| message("system", text)).collect()
        };
        messages.push(message("user", request.prompt));
        let template = Some(request.template).filter(|template| !template.is_empty());
        ChatInput { messages, think, template, ..ChatInput::default() }.prompt(clock::now())
    } else {
        Prompt::Insert { prefix: request.prompt, suffix: request.suffix }
    };
    let asked = call.request(&daemon, prompt, &demand);
    respond(&daemon, &call, protocol::GenerateRequest { before, tell_tokens, ..asked }, lines, how).await
}

pub(crate) async fn chat(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, Failed> {
    let how = How { streams: request.stream.unwrap_or(true), render_only: request.debug_render_only };
    let name = request.model.clone();
    let (dialogue, demand) = request.translate().map_err(Failed::bad_request)?;
    let call = Call::begin(&daemon, &name, &demand).await?.of(&daemon, &caller);
    let lines = answer(&call, Endpoint::Chat);
    let says_nothing = dialogue.messages.is_empty();
    if says_nothing && call.wants_no_keeping() {
        return Ok(unload(&daemon, &call, &lines));
    }
    let dialogue = call.dialogue(dialogue)?;
    if says_nothing {
        return load(&daemon, &call, &lines).await;
    }
    let asked = call.request(&daemon, dialogue.prompt(clock::now()), &demand);
    respond(&daemon, &call, asked, lines, how).await
}

/// The requested form of the answer.
#[derive(Clone, Copy, Debug)]
struct How {
    /// Whether to stream the answer in lines.
    streams: bool,
    /// Whether to return only the rendered prompt.
    render_only: bool,
}

fn answer(call: &Call, endpoint: Endpoint) -> AnswerLines {
    AnswerLines::new(endpoint, &call.name, random_id()).with_ignored(&call.ignored_options())
}

/// Loads the model and confirms it.
async fn load(daemon: &Daemon, call: &Call, lines: &AnswerLines) -> Result<Response, Failed> {
    drop(call.ready(daemon).await?);
    Ok(attested(document(&lines.done("load", &now(None))), &call.digest()))
}

/// Unloads the model and confirms it.
fn unload(daemon: &Daemon, call: &Call, lines: &AnswerLines) -> Response {
    call.unload(daemon);
    attested(document(&lines.done("unload", &now(None))), &call.digest())
}

async fn respond(
    daemon: &Daemon,
    call: &Call,
    asked: protocol::GenerateRequest,
    mut answer: AnswerLines,
    how: How,
) -> Result<Response, Failed> {
    let ready = call.ready_for(daemon, std::slice::from_ref(&asked)).await?;
    if how.render_only {
        let rendered = match &asked.prompt {
            Prompt::Chat(chat) => ready.runner().render(chat).await?,
            Prompt::Text { text } => text.clone(),
            Prompt::Tokens { .. } | Prompt::Insert { .. } => {
                return Err(Failed::bad_request("'_debug_render_only' does not support suffix"));
            }
        };
        return Ok(attested(document(&answer.rendered(rendered, &now(None))), &call.digest()));
    }
    let mut generation = ready.generate(asked).await?;
    // From here on, the generation holds the lease.
    drop(ready);
    if how.streams {
        let (lines, response) = lines();
        tokio::spawn(tell(generation, answer, lines));
        return Ok(with_ignored(attested(response, &call.digest()), &call.ignored_options()));
    }
    let whole = generation.whole().await?;
    let dropped = whole.usage.truncated_tokens;
    let line = answer.whole(whole, &now(Some(generation.times())));
    let response = truncated(attested(document(&line), &call.digest()), dropped);
    Ok(with_ignored(response, &call.ignored_options()))
}

fn document(line: &Line) -> Response {
    Json(line).into_response()
}

/// Returns the current time, with the duration of a generation so far.
fn now(times: Option<Times>) -> Moment {
    let nanos = |of: fn(Times) -> std::time::Duration| times.map_or(0, |times| nanos(of(times)));
    Moment { now: timestamp(SystemTime::now()), total: nanos(|times| times.total), load: nanos(|times| times.load) }
}

/// Converts a duration to nanoseconds, the unit of the API.
pub(crate) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Sends the events of a generation until its end, or until the client disconnects.
async fn tell(mut generation: Generation, mut answer: AnswerLines, lines: Lines) {
    loop {
        // The runner may hold text back for a long time; this notices a client that disconnects
        // meanwhile.
        let event = tokio::select! {
            event = generation.next() => event,
            () = lines.closed() => return,
        };
        let event = event.unwrap_or_else(|failed| {
            tracing::warn!("{}", failed.message);
            failed.into_event()
        });
        let is_last = matches!(event, GenerateEvent::Done { .. } | GenerateEvent::Error { .. });
        let line = answer.event(event, &now(Some(generation.times())));
        if !lines.send(&line).await {
            tracing::debug!("the client went away");
            return;
        }
        if is_last {
            return;
        }
    }
}
