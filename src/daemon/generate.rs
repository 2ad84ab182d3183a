//! `/api/generate` and `/api/chat`: Ollama's words for a call of a model.

use std::time::SystemTime;

use api::ollama::{
    ChatRequest, ChatResponse, ErrorResponse, GenerateRequest, GenerateResponse, KeepAliveSpec, Metrics, Options,
    Think as AskedThink, TokenLogprob,
};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use protocol::{FinishReason, Message, Prompt};
use scheduler::KeepAlive;
use serde_json::{Map, Value};

use super::Daemon;
use super::call::{Call, Conversation, End, Generation, Piece, attested, truncated};
use super::describe::timestamp;
use super::error::{Body, Failed};
use super::stream::{Lines, lines};

pub(super) async fn generate(
    State(daemon): State<Daemon>,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, Failed> {
    refuse_unsupported(request.format.as_ref(), request.images.as_ref(), None)?;
    if !request.suffix.is_empty() {
        return Err(Failed::bad_request(format!("{} does not support insert", request.model)));
    }
    if request.context.as_ref().is_some_and(|context| !context.is_empty()) {
        return Err(Failed::bad_request("'context' is not supported; send the conversation to /api/chat instead"));
    }
    if request.template.as_ref().is_some_and(|template| !template.is_empty()) {
        return Err(Failed::bad_request("'template' is not supported; create a model with TEMPLATE instead"));
    }
    let call = begin(&daemon, &request.model, request.keep_alive, request.options.as_ref()).await?;
    refuse_thinking(&request.model, request.think.as_ref())?;
    let answer = Answer { name: request.model, dialect: Dialect::Generate };
    if request.prompt.is_empty() {
        return load_or_unload(&daemon, call, answer).await;
    }
    let prompt = if request.raw {
        Prompt::Text { text: request.prompt }
    } else {
        let system = call.system(&daemon, request.system).await?;
        let message = |role: &str, content| Message { role: role.to_owned(), content, rest: Map::new() };
        let messages = system.map(|text| message("system", text)).into_iter().chain([message("user", request.prompt)]);
        Conversation { messages: messages.collect(), ..Conversation::default() }.prompt()
    };
    let logprobs = request.logprobs.then_some(request.top_logprobs);
    respond(&daemon, call, prompt, logprobs, request.stream.unwrap_or(true), answer).await
}

pub(super) async fn chat(State(daemon): State<Daemon>, Body(request): Body<ChatRequest>) -> Result<Response, Failed> {
    refuse_unsupported(request.format.as_ref(), None, request.tools.as_ref())?;
    for message in &request.messages {
        if !["system", "user", "assistant", "tool"].contains(&message.role.as_str()) {
            return Err(Failed::bad_request(format!(
                "invalid role: {}, must be one of [system, user, assistant, tool]",
                message.role
            )));
        }
        if message.rest.get("images").and_then(Value::as_array).is_some_and(|images| !images.is_empty()) {
            return Err(Failed::bad_request(NO_IMAGES));
        }
    }
    let call = begin(&daemon, &request.model, request.keep_alive, request.options.as_ref()).await?;
    refuse_thinking(&request.model, request.think.as_ref())?;
    let answer = Answer { name: request.model, dialect: Dialect::Chat };
    if request.messages.is_empty() {
        return load_or_unload(&daemon, call, answer).await;
    }
    let messages = call.conversation(&daemon, request.messages).await?;
    let prompt = Conversation { messages, ..Conversation::default() }.prompt();
    let logprobs = request.logprobs.then_some(request.top_logprobs);
    respond(&daemon, call, prompt, logprobs, request.stream.unwrap_or(true), answer).await
}

const NO_IMAGES: &str = "this model does not support images";

fn refuse_thinking(name: &str, think: Option<&AskedThink>) -> Result<(), Failed> {
    if think.is_some_and(AskedThink::is_wanted) {
        return Err(Failed::bad_request(format!("\"{name}\" does not support thinking")));
    }
    Ok(())
}

/// What is not there yet is refused: an answer that ignores it would be wrong in silence.
fn refuse_unsupported(
    format: Option<&Value>,
    images: Option<&Vec<String>>,
    tools: Option<&Vec<Value>>,
) -> Result<(), Failed> {
    if format.is_some_and(|format| !format.is_null() && format.as_str() != Some("")) {
        return Err(Failed::bad_request("'format' (structured output) is not supported yet"));
    }
    if images.is_some_and(|images| !images.is_empty()) {
        return Err(Failed::bad_request(NO_IMAGES));
    }
    if tools.is_some_and(|tools| !tools.is_empty()) {
        return Err(Failed::bad_request("tools are not supported yet"));
    }
    Ok(())
}

async fn begin(
    daemon: &Daemon,
    name: &str,
    keep_alive: Option<KeepAliveSpec>,
    options: Option<&Map<String, Value>>,
) -> Result<Call, Failed> {
    let (options, unknown) = options.map(Options::read).transpose().map_err(Failed::bad_request)?.unwrap_or_default();
    if !unknown.is_empty() {
        tracing::warn!(?unknown, "options that nobody knows are ignored");
    }
    let keep_alive = keep_alive.map(|KeepAliveSpec(time)| time.map_or(KeepAlive::Forever, KeepAlive::For));
    Call::begin(daemon, name, options, keep_alive).await
}

/// Without a prompt the model is only loaded, or unloaded where it is to be kept for no time.
async fn load_or_unload(daemon: &Daemon, call: Call, answer: Answer) -> Result<Response, Failed> {
    let reason = if call.wants_no_keeping() {
        call.unload(daemon);
        "unload"
    } else {
        drop(call.ready(daemon).await?);
        "load"
    };
    let line = answer.line(String::new(), Vec::new(), Some((reason, None)));
    Ok(attested(line.into_response(), &call.digest()))
}

async fn respond(
    daemon: &Daemon,
    call: Call,
    prompt: Prompt,
    top_logprobs: Option<u32>,
    streams: bool,
    answer: Answer,
) -> Result<Response, Failed> {
    if top_logprobs.is_some_and(|count| count > 20) {
        return Err(Failed::bad_request("top_logprobs must be between 0 and 20"));
    }
    let request = protocol::GenerateRequest { top_logprobs, ..call.request(daemon, prompt) };
    let generation = call.ready(daemon).await?.generate(request).await?;
    if streams {
        let (lines, response) = lines();
        tokio::spawn(stream(generation, answer, lines));
        return Ok(attested(response, &call.digest()));
    }
    let whole = generation.whole().await?;
    let logprobs = whole.logprobs.into_iter().map(TokenLogprob::from).collect();
    let dropped = whole.end.usage.truncated_tokens;
    let line = answer.end(whole.text, logprobs, &whole.end);
    Ok(truncated(attested(line.into_response(), &call.digest()), dropped))
}

/// Sends what is generated until the end, or until nobody listens.
async fn stream(mut generation: Generation, answer: Answer, lines: Lines) {
    loop {
        // Text may be held back for long; a client that goes away meanwhile is noticed here.
        let piece = tokio::select! {
            piece = generation.next() => piece,
            () = lines.closed() => return,
        };
        let logprobs = |logprobs: Vec<protocol::Logprob>| logprobs.into_iter().map(TokenLogprob::from).collect();
        let open = match piece {
            Ok(Piece::Text { text, logprobs: told }) => lines.send(&answer.line(text, logprobs(told), None)).await,
            // Nothing asks for thinking or tools yet.
            Ok(Piece::Thinking { .. } | Piece::ToolCall { .. }) => true,
            Ok(Piece::End(end)) => {
                lines.send(&answer.end(String::new(), Vec::new(), &end)).await;
                return;
            }
            Err(failed) => {
                tracing::warn!("{}", failed.message);
                lines.send(&ErrorResponse { error: failed.message }).await;
                return;
            }
        };
        if !open {
            tracing::debug!("the client went away");
            return;
        }
    }
}

fn name_of(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// Which of the two endpoints answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Generate,
    Chat,
}

/// Lines in the form of the endpoint that was called.
struct Answer {
    /// The model's name as the client wrote it.
    name: String,
    dialect: Dialect,
}

/// A line of either endpoint.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Line {
    Generate(GenerateResponse),
    Chat(ChatResponse),
}

impl IntoResponse for Line {
    fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

impl Answer {
    fn end(&self, text: String, logprobs: Vec<TokenLogprob>, end: &End) -> Line {
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let metrics = Metrics::new(end.usage, nanos(end.total), nanos(end.load));
        self.line(text, logprobs, Some((name_of(end.reason), Some(metrics))))
    }

    fn line(&self, text: String, logprobs: Vec<TokenLogprob>, end: Option<(&str, Option<Metrics>)>) -> Line {
        let (model, created_at, done) = (self.name.clone(), timestamp(SystemTime::now()), end.is_some());
        let (done_reason, metrics) = end.map_or((None, None), |(reason, metrics)| (Some(reason.to_owned()), metrics));
        match self.dialect {
            Dialect::Generate => Line::Generate(GenerateResponse {
                model,
                created_at,
                response: text,
                done,
                done_reason,
                metrics,
                logprobs,
            }),
            Dialect::Chat => {
                let message = Message { role: "assistant".to_owned(), content: text, rest: Map::new() };
                Line::Chat(ChatResponse { model, created_at, message, done, done_reason, metrics, logprobs })
            }
        }
    }
}
