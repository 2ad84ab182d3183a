//! The runner protocol over HTTP on a Unix socket.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use prompt::Special;
use protocol::{
    EvaluateRequest, Failure, GenerateEvent, GenerateRequest, LoadReply, LoadRequest, RenderRequest, Status, Text,
    TokenizeRequest, Tokens,
};
use tokio::net::UnixListener;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};

use crate::cache::KvCache;
use crate::evaluate::{self as evaluation, Unanswered};
use crate::generate::{self, Sink};
use crate::load;
use crate::model::{Model, TextModel};

/// The largest request: prompts, and load plans of models with many tensors.
const MAX_REQUEST: usize = 256 << 20;
/// Events that wait for a slow client before the generation waits too.
const EVENTS: usize = 64;

/// Serves until the parent goes away or asks for the end.
pub(crate) fn run(socket: &Path) -> Result<()> {
    end_with_parent();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener =
            UnixListener::bind(socket).with_context(|| format!("cannot listen on `{}`", socket.display()))?;
        tracing::info!(socket = %socket.display(), "ready to load");
        axum::serve(listener, routes()).await.context("serving failed")
    })
}

/// Standard input is a pipe from the daemon: it closes when the daemon ends, in whatever way.
fn end_with_parent() {
    std::thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        let mut buffer = [0; 64];
        while input.read(&mut buffer).is_ok_and(|n| n > 0) {}
        std::process::exit(0);
    });
}

#[derive(Clone, Default)]
struct Runner(Arc<Inner>);

#[derive(Default)]
struct Inner {
    loaded: OnceLock<Loaded>,
    /// Held while a load is under way.
    loading: Mutex<()>,
    active: AtomicU64,
}

struct Loaded {
    name: String,
    model: Arc<Model>,
    /// Whoever holds it generates; the others wait in line.
    cache: Arc<Mutex<KvCache>>,
}

fn routes() -> Router {
    Router::new()
        .route("/load", post(load_model))
        .route("/generate", post(generate_text))
        .route("/evaluate", post(evaluate))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/render", post(render))
        .route("/status", get(status))
        .route("/unload", post(unload))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state(Runner::default())
}

/// A failure with its status.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(Failure { error: self.1 })).into_response()
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"))
    }
}

impl From<prompt::Error> for Refusal {
    fn from(error: prompt::Error) -> Self {
        Self(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl Runner {
    fn loaded(&self) -> Result<&Loaded, Refusal> {
        let missing = || Refusal(StatusCode::CONFLICT, "no model is loaded yet".to_owned());
        self.0.loaded.get().ok_or_else(missing)
    }

    /// The model, and the cache once it is this request's turn.
    async fn turn(&self) -> Result<(Arc<Model>, OwnedMutexGuard<KvCache>, Active), Refusal> {
        let loaded = self.loaded()?;
        let active = Active::new(self);
        let cache = loaded.cache.clone().lock_owned().await;
        Ok((loaded.model.clone(), cache, active))
    }
}

/// Counts a request from its arrival to its end.
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

/// Runs something that computes; a panic becomes an error.
async fn compute<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| anyhow::anyhow!("the computation panicked"))?
}

async fn load_model(
    State(runner): State<Runner>,
    Json(request): Json<LoadRequest>,
) -> Result<Json<LoadReply>, Refusal> {
    let _loading = runner.0.loading.lock().await;
    if let Some(loaded) = runner.0.loaded.get() {
        return Err(Refusal(StatusCode::CONFLICT, format!("`{}` is loaded already", loaded.name)));
    }
    let name = request.model.clone();
    let (model, cache, reply) = compute(move || load::load(&request)).await?;
    tracing::info!(model = name, device = reply.device, context = reply.context, "loaded");
    let loaded = Loaded { name, model: Arc::new(model), cache: Arc::new(Mutex::new(cache)) };
    if runner.0.loaded.set(loaded).is_err() {
        return Err(Refusal(StatusCode::CONFLICT, "a model is loaded already".to_owned()));
    }
    Ok(Json(reply))
}

struct Channel(mpsc::Sender<GenerateEvent>);

impl Sink for Channel {
    fn send(&self, event: GenerateEvent) -> bool {
        self.0.blocking_send(event).is_ok()
    }

    fn is_open(&self) -> bool {
        !self.0.is_closed()
    }
}

async fn generate_text(
    State(runner): State<Runner>,
    Json(request): Json<GenerateRequest>,
) -> Result<Response, Refusal> {
    let (model, mut cache, active) = runner.turn().await?;
    let (sender, receiver) = mpsc::channel(EVENTS);
    tokio::task::spawn_blocking(move || {
        let sink = Channel(sender);
        let work = std::panic::AssertUnwindSafe(|| generate::generate(&model, &mut cache, &request, &sink));
        let result = std::panic::catch_unwind(work).unwrap_or_else(|_| Err(anyhow::anyhow!("the generation panicked")));
        if let Err(error) = result {
            sink.send(GenerateEvent::Error { error: format!("{error:#}"), bad_request: false });
        }
        drop(active);
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

async fn evaluate(State(runner): State<Runner>, Json(request): Json<EvaluateRequest>) -> Result<Vec<u8>, Refusal> {
    let (model, mut cache, active) = runner.turn().await?;
    // Dropped with this future when the client leaves.
    let (client, here) = oneshot::channel::<()>();
    let numbers = compute(move || {
        let go_on = || !client.is_closed();
        let numbers = evaluation::evaluate(&model.decoder, &mut cache, &request, &go_on);
        drop(active);
        Ok(numbers)
    });
    let numbers = numbers.await?;
    drop(here);
    let numbers = numbers.map_err(|unanswered| match unanswered {
        Unanswered::Refused(reason) => Refusal(StatusCode::BAD_REQUEST, reason),
        Unanswered::Stopped => Refusal(StatusCode::INTERNAL_SERVER_ERROR, "the client left".to_owned()),
        Unanswered::Failed(error) => error.into(),
    })?;
    Ok(numbers.into_iter().flat_map(f32::to_le_bytes).collect())
}

/// Runs something that only needs the model's text part; a panic becomes an error.
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
        Ok(Json(Text { text: text.tokenizer.decode(&request.tokens, true)? }))
    })
    .await
}

async fn render(State(runner): State<Runner>, Json(request): Json<RenderRequest>) -> Result<Json<Text>, Refusal> {
    with_text(&runner, move |text| {
        let rendered = text.render(&request);
        Ok(Json(Text { text: rendered.map_err(|e| Refusal(StatusCode::BAD_REQUEST, format!("{e:#}")))? }))
    })
    .await
}

async fn status(State(runner): State<Runner>) -> Json<Status> {
    Json(Status {
        model: runner.0.loaded.get().map(|loaded| loaded.name.clone()),
        active: runner.0.active.load(Ordering::Relaxed),
        private: 0,
        pid: std::process::id(),
    })
}

async fn unload() {
    // The answer is sent first.
    tokio::spawn(async {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        std::process::exit(0);
    });
}
