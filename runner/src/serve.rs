//! Serves the runner protocol over HTTP on a Unix socket.

mod refusal;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use prompt::Special;
use protocol::{
    ContextRequest, EmbedReply, EmbedRequest, EvaluateRequest, FailureKind, GenerateEvent, GenerateRequest, LoadReply,
    LoadRequest, RenderRequest, RerankReply, RerankRequest, Status, Text, TokenCount, TokenizeRequest, Tokens,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::device;
use crate::embed::Embedding;
use crate::engine::{Fault, Listener, Work};
use crate::evaluate::Evaluation;
use crate::files::Files;
use crate::generate::{self, Generation, Sink};
use crate::load::Loaded;
use crate::load_resources::LoadResources;
use crate::memory::Account;
use crate::rerank::Rerank;
use crate::text::model::Model;
use crate::text::text_model::TextModel;
use refusal::Refusal;

/// Largest request in bytes: prompts, and load plans of models with many tensors.
const MAX_REQUEST: usize = 256 << 20;
/// Number of texts that are rendered or tokenized at a time, or wait for the renderer: each takes a
/// thread.
const COMPUTING: usize = 48;
/// Number of events that may wait for a slow client. If half as many wait, the generation pauses.
const EVENTS: usize = 128;

/// Returns the socket that the daemon has created: this process creates none that other processes
/// can find.
fn socket() -> Result<std::os::unix::net::UnixListener> {
    let socket = std::io::stdout().as_fd().try_clone_to_owned()?;
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.local_addr().context("standard output is not a socket; the daemon must start this program")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until the daemon is gone or requests the end.
pub(crate) fn run(machine: LoadResources) -> Result<()> {
    let socket = socket()?;
    let files = Files::listen();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(COMPUTING).enable_all().build()?;
    runtime.block_on(async {
        let listener = UnixListener::from_std(socket).context("cannot serve on the socket")?;
        tracing::info!("ready to load");
        axum::serve(listener, routes(machine, files)).await.context("serving failed")
    })
}

#[derive(Clone, Debug)]
struct Runner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    loaded: OnceLock<Loaded>,
    /// Locked during a load or a change of the context; the model's files arrive through it.
    loading: Mutex<Files>,
    active: AtomicU64,
    memory: Account,
    machine: LoadResources,
}

fn routes(machine: LoadResources, files: Files) -> Router {
    Router::new()
        .route("/load", post(load_model))
        .route("/context", post(change_context))
        .route("/generate", post(generate_text))
        .route("/count", post(count))
        .route("/evaluate", post(evaluate))
        .route("/embed", post(embed))
        .route("/rerank", post(rerank))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/render", post(render))
        .route("/status", get(status))
        .route("/unload", post(unload))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state(Runner::new(machine, files))
}

impl Runner {
    fn new(machine: LoadResources, files: Files) -> Self {
        Self(Arc::new(Inner {
            loaded: OnceLock::new(),
            loading: Mutex::new(files),
            active: AtomicU64::new(0),
            memory: Account::open(),
            machine,
        }))
    }

    fn loaded(&self) -> Result<&Loaded, Refusal> {
        let missing = || Refusal::conflict("no model is loaded yet".to_owned());
        self.0.loaded.get().ok_or_else(missing)
    }

    /// Has the engine do work, and waits for the result. If the client disconnects, this future is
    /// dropped, and the work ends.
    async fn answer<T, W: Work + 'static>(
        &self,
        work: impl FnOnce(&Model, oneshot::Sender<Result<T, Fault>>) -> Result<W, Fault> + Send + 'static,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
    {
        let loaded = self.loaded()?;
        let _active = Active::new(self);
        let (reply, answer) = oneshot::channel();
        let model = loaded.model.clone();
        // The texts may be long.
        let work = compute(move || Ok(work(&model, reply))).await??;
        loaded.engine.submit(Box::new(work));
        let gone = |_| Refusal::new(FailureKind::Internal, "the engine has ended".to_owned());
        Ok(answer.await.map_err(gone)??)
    }
}

/// Counts a request as active, from its arrival to its end.
struct Active(Runner);

impl Active {
    fn new(runner: &Runner) -> Self {
        runner.0.active.fetch_add(1, Ordering::Relaxed);
        Self(runner.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a computation on a blocking thread; a panic becomes an error.
async fn compute<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| anyhow::anyhow!("the computation panicked"))?
}

async fn load_model(
    State(runner): State<Runner>,
    Json(request): Json<LoadRequest>,
) -> Result<Json<LoadReply>, Refusal> {
    let own = runner.clone();
    let loading = compute(move || {
        let mut files = own.0.loading.blocking_lock();
        if let Some(loaded) = own.0.loaded.get() {
            return Ok(Err(Refusal::conflict(format!("`{}` is loaded already", loaded.name))));
        }
        Ok(Ok(Loaded::load(&request, &own.0.machine, &mut files)?))
    });
    let (loaded, slots) = loading.await??;
    let reply = loaded.reply(slots, &runner.0.memory);
    tracing::info!(
        model = loaded.name,
        device = reply.device,
        instructions = %runner.0.machine.instructions,
        context = reply.context,
        slots = reply.slots,
        kv_type = reply.kv_type.name(),
        kv_cache = reply.kv_cache,
        private = reply.private,
        "loaded"
    );
    if runner.0.loaded.set(loaded).is_err() {
        return Err(Refusal::conflict("a model is loaded already".to_owned()));
    }
    Ok(Json(reply))
}

async fn change_context(
    State(runner): State<Runner>,
    Json(request): Json<ContextRequest>,
) -> Result<Json<LoadReply>, Refusal> {
    let _loading = runner.0.loading.lock().await;
    let loaded = runner.loaded()?;
    let slots = loaded.change(request).await?;
    let reply = loaded.reply(slots, &runner.0.memory);
    tracing::info!(context = reply.context, slots = reply.slots, kv_cache = reply.kv_cache, "changed the context");
    Ok(Json(reply))
}

/// The event stream of a generation, which counts as an active request.
struct Channel {
    events: mpsc::Sender<GenerateEvent>,
    _active: Active,
}

impl Sink for Channel {
    fn send(&self, event: GenerateEvent) -> bool {
        match self.events.try_send(event) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            // One token never has so many events; should it happen, the engine waits and loses
            // none.
            Err(TrySendError::Full(event)) => self.events.blocking_send(event).is_ok(),
        }
    }

    fn listener(&self) -> Listener {
        if self.events.is_closed() {
            Listener::Gone
        } else if self.events.capacity() < EVENTS / 2 {
            Listener::Behind
        } else {
            Listener::Ready
        }
    }
}

async fn generate_text(
    State(runner): State<Runner>,
    Json(request): Json<GenerateRequest>,
) -> Result<Response, Refusal> {
    let model = runner.loaded()?.model.clone();
    let (events, receiver) = mpsc::channel(EVENTS);
    let sink = Box::new(Channel { events: events.clone(), _active: Active::new(&runner) });
    // Tokenizing a long prompt takes a while; the client gets the head of the response before it
    // ends.
    tokio::spawn(async move {
        match compute(move || Ok(Generation::prepare(&model, request, sink))).await {
            Ok(Ok(generation)) => {
                if let Ok(loaded) = runner.loaded() {
                    loaded.engine.submit(Box::new(generation));
                }
            }
            Ok(Err((sink, fault))) => generate::refuse(&*sink, &fault),
            // The panic dropped the sink.
            Err(error) => {
                let error = GenerateEvent::Error { error: format!("{error:#}"), kind: FailureKind::Internal };
                // The client may have disconnected.
                let _ = events.send(error).await;
            }
        }
    });
    let lines = futures_util::stream::unfold(receiver, |mut receiver| async {
        let event = receiver.recv().await?;
        let line = serde_json::to_vec(&event).map(|mut line| {
            line.push(b'\n');
            Bytes::from(line)
        });
        Some((line, receiver))
    });
    Ok(([("content-type", "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

/// Returns the number of tokens of a generation's prompt.
async fn count(
    State(runner): State<Runner>,
    Json(mut request): Json<GenerateRequest>,
) -> Result<Json<TokenCount>, Refusal> {
    let model = runner.loaded()?.model.clone();
    let (prompt, _) = compute(move || Ok(generate::prompted(&model, &mut request))).await??;
    Ok(Json(TokenCount { tokens: prompt.tokens.len() as u64 }))
}

async fn evaluate(State(runner): State<Runner>, Json(request): Json<EvaluateRequest>) -> Result<Vec<u8>, Refusal> {
    let evaluation = move |model: &Model, reply| Evaluation::new(request, model.vocabulary, reply);
    let numbers = runner.answer(evaluation).await?;
    Ok(numbers.into_iter().flat_map(f32::to_le_bytes).collect())
}

async fn embed(State(runner): State<Runner>, Json(request): Json<EmbedRequest>) -> Result<Json<EmbedReply>, Refusal> {
    if request.inputs.is_empty() {
        runner.loaded()?;
        return Ok(Json(EmbedReply { embeddings: Vec::new(), prompt_tokens: Vec::new(), truncated_tokens: 0 }));
    }
    Ok(Json(runner.answer(move |model, reply| Embedding::new(model, &request, reply)).await?))
}

async fn rerank(
    State(runner): State<Runner>,
    Json(request): Json<RerankRequest>,
) -> Result<Json<RerankReply>, Refusal> {
    if request.documents.is_empty() {
        runner.loaded()?;
        return Ok(Json(RerankReply::default()));
    }
    Ok(Json(runner.answer(move |model, reply| Rerank::new(model, &request, reply)).await?))
}

/// Runs a computation that only needs the model's text part; a panic becomes an error.
async fn with_text<T: Send + 'static>(
    runner: &Runner,
    work: impl FnOnce(&TextModel) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let model = runner.loaded()?.model.clone();
    compute(move || Ok(work(&model.text))).await?
}

async fn tokenize(State(runner): State<Runner>, Json(request): Json<TokenizeRequest>) -> Result<Json<Tokens>, Refusal> {
    with_text(&runner, move |text| {
        let special = Special { add: request.add_special, parse: request.parse_special };
        Ok(Json(Tokens { tokens: text.tokenizer.encode(&request.text, special)? }))
    })
    .await
}

async fn detokenize(State(runner): State<Runner>, Json(request): Json<Tokens>) -> Result<Json<Text>, Refusal> {
    with_text(&runner, move |text| {
        if let Some(id) = request.tokens.iter().find(|id| text.tokenizer.piece(**id).is_none()) {
            return Err(prompt::Error::Token { id: *id, size: text.tokenizer.size() }.into());
        }
        Ok(Json(Text { text: text.tokenizer.whole_text(&request.tokens, true)? }))
    })
    .await
}

async fn render(State(runner): State<Runner>, Json(request): Json<RenderRequest>) -> Result<Json<Text>, Refusal> {
    with_text(&runner, move |text| {
        let rendered = text.rendering.render(&request);
        Ok(Json(Text { text: rendered.map_err(|e| Refusal::new(FailureKind::BadRequest, format!("{e:#}")))? }))
    })
    .await
}

async fn status(State(runner): State<Runner>) -> Json<Status> {
    Json(Status {
        model: runner.0.loaded.get().map(|loaded| loaded.name.clone()),
        active: runner.0.active.load(Ordering::Relaxed),
        computing: runner.0.loaded.get().and_then(|loaded| loaded.heartbeat.read()),
        helpers: runner.0.machine.renderer.pids().to_vec(),
        is_for_cpu: device::IS_CPU_ONLY,
        private: runner.0.memory.private(),
        pid: std::process::id(),
    })
}

async fn unload() {
    // The response is sent first.
    tokio::spawn(async {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        std::process::exit(0);
    });
}
