//! The daemon: the HTTP APIs over the store and the scheduler.

mod access;
mod acquire;
mod activation;
mod anthropic;
mod call;
mod choices;
mod cloud;
mod create;
mod describe;
mod embed;
mod error;
mod generate;
mod guard;
mod health;
mod maintenance;
mod metrics;
mod models;
mod openai;
mod openapi;
mod perplexity;
mod sse;
mod stream;
mod tls;
mod tokens;
mod transfer;
mod uploads;

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{delete, get, head, post};
use axum::serve::{IncomingStream, Listener, ListenerExt};
use protocol::InstructionSet;
use registry::server::Server;
use registry::server::access::Access;
use scheduler::{Limits, RunnerOptions, Scheduler};
use store::{Options, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

pub(crate) use guard::Scope;
pub(crate) use guard::keys::make as make_key;
pub(crate) use tls::TlsFiles;
use tls::TlsListener;

use crate::config::Config;
use crate::ops::{Hosts, Library, Repositories, Upstream};

/// The largest JSON request: conversations with pictures, later on.
const MAX_REQUEST: usize = 128 << 20;
/// Time between two collections that nobody asks for.
const SWEEP: Duration = Duration::from_hours(1);
/// How long a model that is in use stays while others wait for its place: short enough to wait for, long against a load.
const TURN: Duration = Duration::from_secs(2);
/// How long requests may go on once the daemon was told to stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// What handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) library: Library,
    pub(crate) scheduler: Scheduler,
    pub(crate) access: Access,
    pub(crate) keys: Option<guard::keys::Keys>,
    counts: metrics::Counts,
    pub(crate) config: Config,
}

/// Runs the daemon until it is told to stop.
pub(crate) fn run(config: Config) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<()> {
    // First the address: a second daemon must fail before it touches anything.
    let address = config.address;
    let listener = activation::listener(address).await?;
    let tls = config.tls.clone();
    if tls.is_none() && config.url.starts_with("https://") {
        bail!(
            "LODE_HOST asks for TLS; set LODE_TLS_CERT and LODE_TLS_KEY to the PEM files of a certificate and its key"
        );
    }
    if let Some(cpu) = config.cpu.filter(|cpu| !cpu.is_here()) {
        let here = InstructionSet::available_names();
        bail!("LODE_CPU is `{}`, expected what this machine has: one of {here}", cpu.name());
    }
    let store = Store::open(&config.home, Options { crash_at: config.crash_at })?;
    let access = access::configured(&config.registry, store.home())?;
    let keys = config.keys.as_deref().map(guard::keys::Keys::open).transpose()?;
    let library = Library::new(store);
    library.tidy();
    let sockets = SocketFolder::create(config.temporary.join(format!("lode-{}", std::process::id())))?;
    let options = RunnerOptions {
        program: config.runner.clone(),
        sockets: sockets.0.clone(),
        environment: config.runner_environment.clone(),
        isolated: config.isolated,
        memory_limit: config.runner_memory,
        threads: config.threads,
        cpu: config.cpu,
    };
    let limits = Limits {
        most: config.max_loaded,
        memory: config.memory_limit,
        queue: config.max_queue,
        load_timeout: config.load_timeout,
        turn: TURN,
    };
    let scheduler = Scheduler::new(options, limits);
    let daemon = Daemon {
        library: library.clone(),
        scheduler: scheduler.clone(),
        access,
        keys,
        counts: metrics::start()?,
        config,
    };
    tracing::info!(%address, tls = tls.is_some(), home = %daemon.library.store.home().display(), "listening");
    let (stop, stopped) = watch::channel(false);
    let preloading = daemon.clone();
    let mut server = match tls {
        Some(files) => start(TlsListener::bind(listener, files)?.tap_io(|_| ()), routes(daemon), stopped),
        None => start(listener, routes(daemon), stopped),
    };
    activation::serving();
    tokio::select! {
        ended = &mut server => return ended?.context("serving failed"),
        () = told_to_stop() => tracing::info!("stopping"),
        () = background(library, preloading) => {}
    }
    activation::stopping();
    let _ = stop.send(true);
    if tokio::time::timeout(SHUTDOWN_GRACE, &mut server).await.is_err() {
        tracing::warn!("requests that were not finished are cut off");
        server.abort();
    }
    if tokio::time::timeout(SHUTDOWN_GRACE, scheduler.stop_all()).await.is_err() {
        tracing::warn!("a runner that was killed is not gone; it ends with the daemon");
    }
    Ok(())
}

/// What nobody asked for; ends with the daemon.
async fn background(library: Library, daemon: Daemon) {
    tokio::join!(sweep(library), daemon.preload());
}

/// Removes now and then what nobody needs; ends with the daemon.
async fn sweep(library: Library) {
    loop {
        // Not at the start: what an interrupted pull has converted is there for it to go on.
        tokio::time::sleep(SWEEP).await;
        let library = library.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || library.sweep()).await {
            tracing::error!("a collection ended unexpectedly: {error}");
        }
    }
}

/// Serves in a task until it is told to stop and all requests are answered.
fn start<L>(listener: L, routes: Router, mut stopped: watch::Receiver<bool>) -> JoinHandle<std::io::Result<()>>
where
    L: Listener,
    L::Addr: std::fmt::Debug,
    SocketAddr: for<'a> Connected<IncomingStream<'a, L>>,
{
    let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        // An error means that the sender is gone, which is a reason to stop too.
        let _ = stopped.wait_for(|stop| *stop).await;
    });
    tokio::spawn(server.into_future())
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
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::metrics))
        .route("/api/version", get(models::version))
        .route("/api/tags", get(models::tags))
        .route("/api/show", post(models::show))
        .route("/api/copy", post(models::copy))
        .route("/api/delete", delete(models::delete))
        .route("/api/ps", get(models::ps))
        .route("/api/create", post(create::create))
        .route("/api/pull", post(transfer::pull))
        .route("/api/push", post(transfer::push))
        .route("/api/generate", post(generate::generate))
        .route("/api/chat", post(generate::chat))
        .route("/api/embed", post(embed::embed))
        .route("/api/embeddings", post(embed::embeddings))
        .route("/api/tokenize", post(tokens::tokenize))
        .route("/api/detokenize", post(tokens::detokenize))
        .merge(cloud::routes())
        .merge(openai::routes())
        .merge(anthropic::routes())
        .route("/api/lode/perplexity", post(perplexity::perplexity))
        .merge(maintenance::routes())
        .merge(openapi::routes())
        .layer(DefaultBodyLimit::max(MAX_REQUEST));
    let uploads = Router::new()
        .route("/api/blobs/{digest}", head(uploads::exists).post(uploads::upload))
        .layer(DefaultBodyLimit::disable());
    let scheme = if daemon.config.tls.is_some() { "https" } else { "http" };
    let library = daemon.library.clone();
    let hosts = if daemon.access.anyone_may_pull() {
        Hosts::anonymous(&daemon.config.registries)
    } else {
        Hosts::new(&daemon.config.registries, false)
    };
    let allowed = daemon.config.pull_through.clone();
    let upstream = allowed.map(|allowed| Upstream { library: library.clone(), hosts, allowed: Some(allowed) });
    let repositories = Repositories { library, upstream };
    let registry = Server::new(repositories, daemon.access.clone(), scheme).router();
    api.merge(uploads)
        .merge(maintenance::uploads())
        .merge(registry)
        .fallback(error::not_found)
        // Inside of what refuses: a refused request has no route yet.
        .route_layer(axum::middleware::from_fn(metrics::count))
        .layer(axum::middleware::from_fn_with_state(daemon.clone(), guard::check))
        .layer(guard::cors(&daemon.config))
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
