//! `/api/generate` and `/api/chat`.

use std::time::{Duration, Instant, SystemTime};

use api::ollama::{
    ChatRequest, ChatResponse, ErrorResponse, GenerateRequest, GenerateResponse, KeepAliveSpec, Metrics, Options,
    Think, TokenLogprob,
};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use manifests::media_types;
use protocol::{FinishReason, GenerateEvent, Message, Prompt, RenderRequest, Usage};
use scheduler::{Events, KeepAlive, Lease};
use serde_json::{Map, Value};

use super::Daemon;
use super::describe::timestamp;
use super::error::{Body, Failed};
use super::models::{blocking, find, reference};
use super::stream::{Lines, lines};
use crate::ops::{Library, Model};

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
    let call =
        Call::begin(&daemon, &request.model, request.keep_alive, request.options.as_ref(), request.think.as_ref())
            .await?;
    let dialect = Dialect::Generate;
    if request.prompt.is_empty() {
        return call.load_or_unload(&daemon, dialect).await;
    }
    let prompt = if request.raw {
        Prompt::Text { text: request.prompt }
    } else {
        let model = call.model.clone();
        let system = request.system;
        let system = blocking(&daemon.library, move |library| system_prompt(library, &model, system)).await?;
        let message = |role: &str, content| Message { role: role.to_owned(), content, rest: Map::new() };
        let messages = system.map(|text| message("system", text)).into_iter().chain([message("user", request.prompt)]);
        chat_prompt(messages.collect())
    };
    let logprobs = request.logprobs.then_some(request.top_logprobs);
    call.answer(&daemon, prompt, logprobs, request.stream.unwrap_or(true), dialect).await
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
    let call =
        Call::begin(&daemon, &request.model, request.keep_alive, request.options.as_ref(), request.think.as_ref())
            .await?;
    let dialect = Dialect::Chat;
    if request.messages.is_empty() {
        return call.load_or_unload(&daemon, dialect).await;
    }
    let model = call.model.clone();
    let messages = request.messages;
    let messages = blocking(&daemon.library, move |library| conversation(library, &model, messages)).await?;
    let logprobs = request.logprobs.then_some(request.top_logprobs);
    call.answer(&daemon, chat_prompt(messages), logprobs, request.stream.unwrap_or(true), dialect).await
}

const NO_IMAGES: &str = "this model does not support images";

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

/// The system prompt of the request, else the model's.
fn system_prompt(library: &Library, model: &Model, given: Option<String>) -> anyhow::Result<Option<String>> {
    let system = match given {
        Some(text) => Some(text),
        None => model.layer_text(library, media_types::SYSTEM)?,
    };
    Ok(system.filter(|text| !text.is_empty()))
}

/// The model's own messages and system prompt before those of the request.
fn conversation(library: &Library, model: &Model, messages: Vec<Message>) -> anyhow::Result<Vec<Message>> {
    let mut all = model.messages(library)?;
    all.extend(messages);
    let has_system = all.first().is_some_and(|message| message.role == "system");
    if let Some(content) = system_prompt(library, model, None)?.filter(|_| !has_system) {
        all.insert(0, Message { role: "system".to_owned(), content, rest: Map::new() });
    }
    Ok(all)
}

fn chat_prompt(messages: Vec<Message>) -> Prompt {
    Prompt::Chat(RenderRequest { messages, add_generation_prompt: true, ..RenderRequest::default() })
}

/// Which of the two endpoints answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Generate,
    Chat,
}

/// A request whose model and options are known.
struct Call {
    begin: Instant,
    /// The name as the client wrote it.
    name: String,
    model: Model,
    options: Options,
    /// Where the request says.
    keep_alive: Option<KeepAlive>,
}

impl Call {
    async fn begin(
        daemon: &Daemon,
        name: &str,
        keep_alive: Option<KeepAliveSpec>,
        options: Option<&Map<String, Value>>,
        think: Option<&Think>,
    ) -> Result<Self, Failed> {
        let begin = Instant::now();
        let model = find(daemon, reference(name, "")?).await?;
        if think.is_some_and(Think::is_wanted) {
            return Err(Failed::bad_request(format!("\"{name}\" does not support thinking")));
        }
        let own = model.clone();
        let mut all = blocking(&daemon.library, move |library| own.parameters(library)).await?;
        all.extend(options.cloned().unwrap_or_default());
        let (options, unknown) = Options::read(&all).map_err(Failed::bad_request)?;
        if !unknown.is_empty() {
            tracing::warn!(?unknown, "options that nobody knows are ignored");
        }
        let keep_alive = match keep_alive {
            Some(KeepAliveSpec(Some(time))) => Some(KeepAlive::For(time)),
            Some(KeepAliveSpec(None)) => Some(KeepAlive::Forever),
            None => None,
        };
        Ok(Self { begin, name: name.to_owned(), model, options, keep_alive })
    }

    async fn acquire(&self, daemon: &Daemon) -> Result<Lease, Failed> {
        let context = daemon.context(&self.model, self.options.num_ctx);
        daemon.acquire(&self.model, context, self.keep_alive).await
    }

    /// Without a prompt the model is only loaded, or unloaded where it is to be kept for no time.
    async fn load_or_unload(self, daemon: &Daemon, dialect: Dialect) -> Result<Response, Failed> {
        let reason = if self.keep_alive == Some(KeepAlive::For(Duration::ZERO)) {
            daemon.scheduler.stop(&self.model.manifest.digest().to_string());
            "unload"
        } else {
            drop(self.acquire(daemon).await?);
            "load"
        };
        let answer = Answer { name: self.name, dialect };
        Ok(answer.last(reason, String::new(), None, Vec::new()).into_response())
    }

    async fn answer(
        self,
        daemon: &Daemon,
        prompt: Prompt,
        top_logprobs: Option<u32>,
        streams: bool,
        dialect: Dialect,
    ) -> Result<Response, Failed> {
        if top_logprobs.is_some_and(|count| count > 20) {
            return Err(Failed::bad_request("top_logprobs must be between 0 and 20"));
        }
        let lease = self.acquire(daemon).await?;
        let load = nanos(self.begin);
        let request = protocol::GenerateRequest {
            sampling: self.options.sampling(lease.reply().context),
            stop: self.options.stop.clone().unwrap_or_default(),
            max_tokens: self.options.max_tokens(),
            keep: self.options.num_keep.unwrap_or(4),
            top_logprobs,
            ..protocol::GenerateRequest::new(prompt)
        };
        let mut events = lease.runner().generate(&request).await?;
        // The first event decides between an error with its status and a stream.
        let first = events.next().await;
        let first = match first {
            Some(Ok(GenerateEvent::Error { error, .. })) => return Err(Failed::bad_request(error)),
            Some(event) => event?,
            None => return Err(anyhow::anyhow!("the runner said nothing").into()),
        };
        let generation = Generation {
            answer: Answer { name: self.name, dialect },
            first: Some(first),
            events,
            begin: self.begin,
            load,
            _lease: lease,
        };
        if !streams {
            return generation.whole().await;
        }
        let (lines, response) = lines();
        tokio::spawn(generation.stream(lines));
        Ok(response)
    }
}

fn nanos(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A generation under way. Dropping it cancels it.
struct Generation {
    answer: Answer,
    first: Option<GenerateEvent>,
    events: Events,
    begin: Instant,
    load: u64,
    _lease: Lease,
}

impl Generation {
    async fn next(&mut self) -> Option<Result<GenerateEvent, scheduler::Error>> {
        match self.first.take() {
            Some(event) => Some(Ok(event)),
            None => self.events.next().await,
        }
    }

    fn metrics(&self, usage: Usage) -> Metrics {
        Metrics::new(usage, nanos(self.begin), self.load)
    }

    async fn stream(mut self, lines: Lines) {
        loop {
            // Text may be held back for long; a client that goes away meanwhile is noticed here.
            let event = tokio::select! {
                event = self.next() => event,
                () = lines.closed() => return,
            };
            let Some(event) = event else { return };
            let open = match event {
                Ok(GenerateEvent::Text { text, logprobs }) => lines.send(&self.answer.piece(text, logprobs)).await,
                // Nothing asks for thinking or tools yet.
                Ok(GenerateEvent::Thinking { .. } | GenerateEvent::ToolCall { .. }) => true,
                Ok(GenerateEvent::Done { reason, usage, .. }) => {
                    let metrics = self.metrics(usage);
                    lines.send(&self.answer.last(name_of(reason), String::new(), Some(metrics), Vec::new())).await
                }
                Ok(GenerateEvent::Error { error, .. }) => lines.send(&ErrorResponse { error }).await,
                Err(error) => {
                    tracing::warn!("{error}");
                    lines.send(&ErrorResponse { error: error.to_string() }).await
                }
            };
            if !open {
                tracing::debug!("the client went away");
                return;
            }
        }
    }

    async fn whole(mut self) -> Result<Response, Failed> {
        let (mut all, mut all_logprobs) = (String::new(), Vec::new());
        while let Some(event) = self.next().await {
            match event? {
                GenerateEvent::Text { text, logprobs } => {
                    all.push_str(&text);
                    all_logprobs.extend(logprobs.into_iter().map(TokenLogprob::from));
                }
                GenerateEvent::Thinking { .. } | GenerateEvent::ToolCall { .. } => {}
                GenerateEvent::Done { reason, usage, .. } => {
                    let metrics = self.metrics(usage);
                    return Ok(self.answer.last(name_of(reason), all, Some(metrics), all_logprobs).into_response());
                }
                GenerateEvent::Error { error, .. } => return Err(anyhow::anyhow!(error).into()),
            }
        }
        Err(anyhow::anyhow!("the runner ended without an answer").into())
    }
}

fn name_of(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// Lines in the form of the endpoint that was called.
struct Answer {
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
    fn piece(&self, text: String, logprobs: Vec<protocol::Logprob>) -> Line {
        self.line(text, logprobs.into_iter().map(TokenLogprob::from).collect(), None, None)
    }

    fn last(&self, reason: &str, text: String, metrics: Option<Metrics>, logprobs: Vec<TokenLogprob>) -> Line {
        self.line(text, logprobs, Some(reason.to_owned()), metrics)
    }

    fn line(
        &self,
        text: String,
        logprobs: Vec<TokenLogprob>,
        done_reason: Option<String>,
        metrics: Option<Metrics>,
    ) -> Line {
        let (model, created_at, done) = (self.name.clone(), timestamp(SystemTime::now()), done_reason.is_some());
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
