//! The daemon: the HTTP APIs over the store and the scheduler.

mod create;
mod describe;
mod error;
mod generate;
mod maintenance;
mod models;
mod origin;
mod stream;
mod uploads;

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{delete, get, head, post};
use registry::server::Server;
use scheduler::{KeepAlive, RunnerOptions, Scheduler};
use store::{Options, Store};
use tokio::net::TcpListener;
use tracing::Instrument;

use crate::config::Config;
use crate::ops::{Library, Repositories};

/// The largest JSON request: conversations with pictures, later on.
const MAX_REQUEST: usize = 128 << 20;
/// How long requests may go on once the daemon was told to stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// What handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) library: Library,
    pub(crate) scheduler: Scheduler,
    pub(crate) config: Config,
}

impl Daemon {
    /// How long a model stays loaded where a request does not say.
    fn keep_alive(&self) -> KeepAlive {
        self.config.keep_alive.map_or(KeepAlive::Forever, KeepAlive::For)
    }
}

/// Runs the daemon until it is told to stop.
pub(crate) fn run(config: Config) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<()> {
    // First the address: a second daemon must fail before it touches anything.
    let address = config.address;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; is a daemon (or Ollama) running there? LODE_HOST chooses another address")
    })?;
    let store = Store::open(&config.home, Options { crash_at: config.crash_at })?;
    let library = Library { store };
    library.tidy();
    let sockets = SocketFolder::create(config.temporary.join(format!("lode-{}", std::process::id())))?;
    let options =
        RunnerOptions { program: config.runner.clone(), sockets: sockets.0.clone(), load_timeout: config.load_timeout };
    let scheduler = Scheduler::new(options, config.max_loaded);
    let daemon = Daemon { library, scheduler: scheduler.clone(), config };
    tracing::info!(%address, home = %daemon.library.store.home().display(), "listening");
    let routes = routes(daemon).into_make_service_with_connect_info::<SocketAddr>();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut stopping = stopped.clone();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        // An error means that the sender is gone, which is a reason to stop too.
        let _ = stopping.wait_for(|stop| *stop).await;
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::select! {
        ended = &mut server => return ended?.context("serving failed"),
        () = told_to_stop() => tracing::info!("stopping"),
    }
    let _ = stop.send(true);
    if tokio::time::timeout(SHUTDOWN_GRACE, &mut server).await.is_err() {
        tracing::warn!("requests that were not finished are cut off");
        server.abort();
    }
    scheduler.stop_all();
    Ok(())
}

/// A folder for sockets, for this user only; removed at the end.
struct SocketFolder(PathBuf);

impl SocketFolder {
    fn create(path: PathBuf) -> Result<Self> {
        // What a process with the same id left behind.
        let _ = std::fs::remove_dir_all(&path);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder `{}` for sockets", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without signals the daemon runs until it is killed.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn routes(daemon: Daemon) -> Router {
    let api = Router::new()
        .route("/", get(models::root))
        .route("/api/version", get(models::version))
        .route("/api/tags", get(models::tags))
        .route("/api/show", post(models::show))
        .route("/api/copy", post(models::copy))
        .route("/api/delete", delete(models::delete))
        .route("/api/ps", get(models::ps))
        .route("/api/create", post(create::create))
        .route("/api/generate", post(generate::generate))
        .route("/api/chat", post(generate::chat))
        .merge(maintenance::routes())
        .layer(DefaultBodyLimit::max(MAX_REQUEST));
    let uploads = Router::new()
        .route("/api/blobs/{digest}", head(uploads::exists).post(uploads::upload))
        .layer(DefaultBodyLimit::disable());
    let registry = Server::new(Repositories { library: daemon.library.clone() }).router();
    api.merge(uploads)
        .merge(maintenance::uploads())
        .merge(registry)
        .fallback(error::not_found)
        .layer(axum::middleware::from_fn_with_state(daemon.clone(), origin::check))
        .layer(axum::middleware::from_fn(span))
        .with_state(daemon)
}

/// A span per request, and a line when it is answered.
async fn span(request: Request, next: Next) -> Response {
    let span = tracing::info_span!("request", method = %request.method(), path = request.uri().path());
    async {
        let begin = std::time::Instant::now();
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), elapsed = ?begin.elapsed(), "answered");
        response
    }
    .instrument(span)
    .await
}
