//! `/api/generate` and `/api/chat`.

use std::time::SystemTime;

use api::ollama::{AnswerLines, ChatRequest, Endpoint, GenerateRequest, Line, Moment};
use api::{ChatInput, CollectedAnswer, GenerationOptions};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use library::Capability;
use protocol::{GenerateEvent, Prompt};

use crate::body::Body;
use crate::call::{Call, Times, message};
use crate::chat::{self, Answers, Chat, ChatFormat};
use crate::clock;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::{attested, with_ignored};
use crate::model_documents::timestamp;
use crate::openai::random_id;
use crate::remote_pictures::fetched;
use crate::stream::{BodySender, encode, line_body};

pub(crate) async fn generate(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, Failed> {
    let (streams, render_only) = (request.stream.unwrap_or(true), request.debug_render_only);
    let demand = request.demand().map_err(Failed::bad_request)?;
    let before = request.before().map_err(Failed::bad_request)?;
    let (text, pictures) = request.prompt_with_pictures().map_err(Failed::bad_request)?;
    let call = Call::begin(&daemon, &request.model, &demand).await?.of(&daemon, &caller);
    let lines = answer(&call, Endpoint::Generate);
    if text.is_empty() && call.wants_no_keeping() {
        return Ok(unload(&daemon, &call, &lines));
    }
    call.require_text("generate")?;
    let think = call.thinking(request.think, false)?;
    if !request.suffix.is_empty() {
        call.require(Capability::Insert)?;
    }
    if text.is_empty() {
        return load(&daemon, &call, &lines).await;
    }
    if !pictures.is_empty() {
        call.require_vision()?;
    }
    let pictures = fetched(&daemon, pictures).await?;
    let tell_tokens = !request.raw;
    let prompt = if request.raw {
        Prompt::Text { text }
    } else if request.suffix.is_empty() {
        let mut messages = if before.is_empty() {
            call.opening(request.system)?
        } else {
            // The tokens of `before` already contain the model's messages.
            request.system.into_iter().filter(|text| !text.is_empty()).map(|text| message("system", text)).collect()
        };
        messages.push(message("user", text));
        let template = Some(request.template).filter(|template| !template.is_empty());
        ChatInput { messages, think, template, ..ChatInput::default() }.prompt(clock::now())
    } else {
        Prompt::Insert { prefix: text, suffix: request.suffix }
    };
    let asked = call.request(&daemon, prompt, &demand);
    let asked = protocol::GenerateRequest { before, pictures, tell_tokens, ..asked };
    if render_only {
        return rendered(&daemon, &call, &asked, &lines).await;
    }
    let wanted = Answers { choices: 1, streams };
    let response = chat::respond(&daemon, &call, asked, wanted, &demand, OllamaAnswer(lines)).await?;
    Ok(with_ignored(attested(response, &call.digest()), &call.ignored_options()))
}

pub(crate) async fn chat(
    State(daemon): State<Daemon>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, Failed> {
    let (model, streams, render_only) =
        (request.model.clone(), request.stream.unwrap_or(true), request.debug_render_only);
    let (input, options) = request.translate().map_err(Failed::bad_request)?;
    if input.messages.is_empty() {
        return load_or_unload(&daemon, &model, input, &options).await;
    }
    if render_only {
        let call = Call::begin(&daemon, &model, &options).await?.of(&daemon, &caller);
        let asked = call.chat_request(&daemon, call.with_own_messages(input)?, &options).await?;
        return rendered(&daemon, &call, &asked, &answer(&call, Endpoint::Chat)).await;
    }
    let asked = Chat { model, input, options, choices: 1, streams };
    chat::answer(&daemon, &caller, asked, |call| OllamaAnswer(answer(call, Endpoint::Chat))).await
}

/// Loads the model of a chat without messages, or unloads it if the keep-alive is zero.
async fn load_or_unload(
    daemon: &Daemon,
    model: &str,
    input: ChatInput,
    options: &GenerationOptions,
) -> Result<Response, Failed> {
    let call = Call::begin(daemon, model, options).await?;
    let lines = answer(&call, Endpoint::Chat);
    if call.wants_no_keeping() {
        return Ok(unload(daemon, &call, &lines));
    }
    call.with_own_messages(input)?;
    load(daemon, &call, &lines).await
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

/// Returns the rendered prompt, without an answer.
async fn rendered(
    daemon: &Daemon,
    call: &Call,
    asked: &protocol::GenerateRequest,
    lines: &AnswerLines,
) -> Result<Response, Failed> {
    let ready = call.ready_for(daemon, std::slice::from_ref(asked)).await?;
    let rendered = match &asked.prompt {
        Prompt::Chat(chat) => ready.runner().render(chat).await?,
        Prompt::Text { text } => text.clone(),
        Prompt::Tokens { .. } | Prompt::Insert { .. } => {
            return Err(Failed::bad_request("'_debug_render_only' does not support suffix"));
        }
    };
    Ok(attested(document(&lines.rendered(rendered, &now(None))), &call.digest()))
}

/// The answer as lines.
struct OllamaAnswer(AnswerLines);

impl ChatFormat for OllamaAnswer {
    fn body() -> (BodySender, Response) {
        line_body()
    }

    fn begin(&mut self) -> String {
        String::new()
    }

    fn event(&mut self, _choice: u32, event: GenerateEvent, times: Times) -> String {
        encode(&self.0.event(event, &now(Some(times))))
    }

    fn whole(&mut self, mut answers: Vec<CollectedAnswer>, times: Times) -> Response {
        document(&self.0.whole(answers.pop().unwrap_or_default(), &now(Some(times))))
    }
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
