//! Running the daemon, from binding its address to the last response.

use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::ollama::VersionResponse;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::ListenerExt;
use content::bail;
use content::operation::{Context, Result, Unclassified};
use library::Library;
use protocol::InstructionSet;
use registry::server::{Journal, RepositoryRules, Server, ServerOptions, record_unserved};
use scheduler::{Limits, RunnerOptions, Scheduler, gpu_driver};
use store::{Options, Store};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;
use transfer::{Hosts, Repositories, SyncTarget};

use crate::bandwidth::SharedLimit;
use crate::budget::Budget;
use crate::collections::Collections;
use crate::daemon::Daemon;
use crate::guard::keys::Keys;
use crate::job_tasks::runner;
use crate::jobs::Jobs;
use crate::long_tasks::LongTasks;
use crate::rates::Rates;
use crate::registry_journal::RegistryJournal;
use crate::registry_retention::apply_retention;
use crate::registry_sync::keep_synced;
use crate::routes::{permissions, router};
use crate::settings::Settings;
use crate::socket_uploads::{Socket, SocketUploads};
use crate::threads::scarce_threads;
use crate::tls::{TlsFiles, TlsListener};
use crate::{access, activation, connections, error, guard, log_rotation, metrics, tiering, trace_context};

/// Time between two periodic sweeps of the store.
const SWEEP: Duration = Duration::from_hours(1);
/// Time between two runs of the registry's retention, and the pause before the first one.
const RETENTION: Duration = Duration::from_hours(1);
const FIRST_RETENTION: Duration = Duration::from_mins(10);
/// Time between two checks for idle uploads.
const CLOSE: Duration = Duration::from_mins(1);
/// Time between two checks of whether the index has failed.
const MEND: Duration = Duration::from_millis(500);
/// The pause after a failed repair, as a multiple of the repair's duration.
const MEND_REST: u32 = 10;
/// The pause after a repair that failed on an unreadable document. It is longer, because each
/// repair reads all documents.
const MEND_UNREADABLE: Duration = Duration::from_secs(10);
/// Time between two checks for pending collections.
const COLLECT: Duration = Duration::from_millis(500);
/// How long a model in use stays while other requests wait for its place: short for a waiting
/// request, but long compared with a load.
const TURN: Duration = Duration::from_secs(2);
/// How long idle threads for blocking work stay alive.
const KEPT_THREADS: Duration = Duration::from_hours(1);
/// How long requests may continue after the daemon was told to stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// The daemon cannot start serving; the text states what to change.
pub fn run(settings: Settings) -> Result<()> {
    if let Some(reason) = scarce_threads() {
        bail!("{reason}");
    }
    // If the system refuses a thread for blocking work, the runtime uses an existing one, and
    // panics if there is none. So one thread is started here and kept.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_keep_alive(KEPT_THREADS).build()?;
    drop(runtime.spawn_blocking(|| ()));
    let served = runtime.block_on(serve(settings));
    // Blocking work that is still running belongs to requests that no longer make progress.
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    served
}

async fn serve(settings: Settings) -> Result<()> {
    // The address comes first: a second daemon must fail before it changes anything.
    let address = settings.address;
    let listener = activation::listener(address).await?;
    let tls = settings.tls.clone();
    ensure_instructions(&settings)?;
    let store = open(&settings)?;
    let access = access::configured(&settings.registry, &store)?;
    let keys = settings.keys.as_deref().map(Keys::open).transpose()?;
    let library = Library::new(store.clone());
    library.tidy();
    let sockets = SocketFolder::create(settings.temporary.join(format!("lode-{}", std::process::id())))?;
    let scheduler = Scheduler::new(runner_options(&settings, &library, &sockets)?, limits(&settings));
    let tier = tiering::attach(&store, &library, settings.tier.as_ref(), &scheduler)?;
    drop(store);
    let journal = RegistryJournal::start(&settings.policy)?;
    let handed = SocketUploads::default();
    // Creating a model from files adds to the store, so a read-only store needs no socket.
    let socket = (!library.is_read_only()).then(|| Socket::bind(&settings.socket, settings.socket_is_shared));
    let jobs = Jobs::new(&library, &settings.registries.bandwidth);
    let daemon = Daemon {
        library: library.clone(),
        scheduler: scheduler.clone(),
        access,
        keys,
        counts: metrics::start()?,
        rates: Rates::default(),
        limit: SharedLimit::new(&settings.registries.bandwidth, &settings.bandwidth),
        settings,
        budget: Budget::new(),
        handed: handed.clone(),
        jobs: jobs.clone(),
        long_tasks: LongTasks::new(),
        incoming: LongTasks::new(),
        readouts: LongTasks::new(),
        permissions: Arc::new(permissions()),
        journal: journal.journal(),
        tier,
        collections: Collections::default(),
    };
    tracing::info!(%address, tls = tls.is_some(), home = %daemon.library.home().display(), "listening");
    serve_socket(handed, socket);
    daemon.jobs.restore(&runner(&daemon));
    let (stop, stopped) = watch::channel(false);
    let preloading = daemon.clone();
    let repositories = daemon.repositories();
    let registry = registry(&daemon, repositories.clone());
    let routes = application(daemon, registry.clone().router());
    let mut server = listen(listener, tls, routes, stopped)?;
    activation::serving();
    tokio::select! {
        ended = &mut server => return ended.internal().context("serving failed"),
        () = told_to_stop() => tracing::info!("stopping"),
        () = background(library, preloading, registry, repositories) => {}
    }
    activation::stopping();
    let _ = stop.send(true);
    jobs.halt().await;
    finish(server, &scheduler).await;
    journal.finish(SHUTDOWN_GRACE).await;
    Ok(())
}

/// Takes files that commands pass through the socket, if there is one.
fn serve_socket(handed: SocketUploads, socket: Option<Result<Socket>>) {
    match socket {
        None => {}
        Some(Ok(socket)) => drop(tokio::spawn(handed.serve(socket))),
        // Without the socket, commands send paths, which needs the admin scope.
        Some(Err(error)) => tracing::warn!("commands cannot pass files through the socket: {error:#}"),
    }
}

fn open(settings: &Settings) -> Result<Store> {
    let options = Options {
        temporary: Some(settings.temporary.clone()),
        roots: settings.roots.clone(),
        crash_at: settings.crash_at,
    };
    let store = Store::open(&settings.home, options)?;
    if let Err(read_only) = store.ensure_writable() {
        tracing::warn!("{read_only}");
    }
    Ok(store)
}

/// Fails if `LODE_CPU` names an instruction set that this machine lacks.
fn ensure_instructions(settings: &Settings) -> Result<()> {
    if let Some(cpu) = settings.cpu.filter(|cpu| !cpu.is_here()) {
        let here = InstructionSet::available_names();
        bail!("LODE_CPU is `{}`, expected an instruction set of this machine: one of {here}", cpu.name());
    }
    Ok(())
}

fn runner_options(settings: &Settings, library: &Library, sockets: &SocketFolder) -> Result<RunnerOptions> {
    Ok(RunnerOptions {
        program: settings.runner.clone(),
        sockets: sockets.0.clone(),
        environment: runner_environment(settings, if library.is_read_only() { &sockets.0 } else { &settings.home })?,
        isolated: settings.isolated,
        patience: settings.runner_timeout,
        gpu_keep: settings.gpu_keep.clone(),
        memory_limit: settings.runner_memory,
        threads: settings.threads,
        cpu: settings.cpu,
    })
}

fn limits(settings: &Settings) -> Limits {
    Limits {
        most: settings.max_loaded,
        memory: settings.memory_limit,
        queue: settings.max_queue,
        load_timeout: settings.load_timeout,
        turn: TURN,
    }
}

/// Serves connections in a task, which ends when `stopped` says so.
pub(crate) fn listen(
    listener: TcpListener,
    tls: Option<TlsFiles>,
    routes: Router,
    stopped: watch::Receiver<bool>,
) -> Result<JoinHandle<()>> {
    let limits = connections::ConnectionLimits::of_process();
    Ok(if let Some(files) = tls {
        tokio::spawn(connections::serve(TlsListener::bind(listener, files)?, routes, limits, stopped))
    } else {
        // Disables Nagle's algorithm: responses are written in parts, and delaying the last part
        // would cost a round trip.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        tokio::spawn(connections::serve(listener, routes, limits, stopped))
    })
}

/// Waits for requests and runners to end, for a while.
async fn finish(mut server: JoinHandle<()>, scheduler: &Scheduler) {
    if tokio::time::timeout(SHUTDOWN_GRACE, &mut server).await.is_err() {
        tracing::warn!("requests that were not finished are cut off");
        server.abort();
    }
    if tokio::time::timeout(SHUTDOWN_GRACE, scheduler.stop_all()).await.is_err() {
        tracing::warn!("a runner that was killed is not gone; it ends with the daemon");
    }
}

/// Returns the environment of runners, with a folder in `place` for kernels that a GPU's driver
/// compiles.
fn runner_environment(settings: &Settings, place: &Path) -> Result<Vec<(OsString, OsString)>> {
    let folder = place.join("cuda");
    let environment = gpu_driver::with_cache(settings.runner_environment.clone(), &folder);
    environment.with_context(|| format!("the folder `{}` for the GPU's driver cannot be made", folder.display()))
}

/// Background tasks; they end with the daemon.
async fn background(library: Library, daemon: Daemon, registry: Arc<Server<Repositories>>, repositories: Repositories) {
    let log = log_rotation::file(library.home(), &daemon.settings.temporary);
    let upkeep = async {
        let (log, index) = (log_rotation::keep_small(&log), mend_index(library.clone()));
        if library.is_read_only() {
            tokio::join!(log, index);
            return;
        }
        let collections = attend_to_collections(library.clone());
        let policy = &daemon.settings.policy;
        let journal = daemon.journal.as_ref();
        let retention = retention(&repositories, &policy.rules, journal);
        let hosts = Hosts::new(&daemon.settings.registries, false);
        let to = SyncTarget { storage: &repositories, rules: &policy.rules, journal };
        let syncs = keep_synced(&hosts, &to, &policy.sync);
        let tier = tiering::keep(daemon.tier.as_ref());
        tokio::join!(log, index, collections, close_idle(&registry), sweep(library), retention, syncs, tier);
    };
    tokio::join!(upkeep, daemon.preload(), daemon.limit.keep());
}

/// Fills the index after a crash, and rebuilds it after a failure, whose cause may be gone by now.
/// The list of names is read first, because searches wait for it.
async fn mend_index(library: Library) {
    let own = library.clone();
    if let Err(error) = tokio::task::spawn_blocking(move || own.names().load_list()).await {
        tracing::error!("reading the list of names ended unexpectedly: {error}");
    }
    loop {
        let (library, begin) = (library.clone(), Instant::now());
        let pause = match tokio::task::spawn_blocking(move || library.mend_index()).await {
            Ok(Ok(())) => MEND,
            // The store has logged the cause. It may persist, and every attempt reads all
            // documents, so the pause grows with the duration.
            Ok(Err(store::Error::Index(_))) => begin.elapsed().saturating_mul(MEND_REST).max(MEND),
            Ok(Err(error)) => {
                tracing::warn!("the index lacks documents: {error}");
                MEND_UNREADABLE
            }
            Err(error) => {
                tracing::error!("repairing the index ended unexpectedly: {error}");
                MEND_UNREADABLE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Runs collections that requests have deferred.
async fn attend_to_collections(library: Library) {
    loop {
        tokio::time::sleep(COLLECT).await;
        let library = library.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || library.attend_to_collections()).await {
            tracing::error!("a collection ended unexpectedly: {error}");
        }
    }
}

/// Applies the retention of the registry's repositories, for the first time soon.
async fn retention(repositories: &Repositories, rules: &RepositoryRules, journal: &dyn Journal) {
    let mut pause = FIRST_RETENTION;
    loop {
        tokio::time::sleep(pause).await;
        pause = RETENTION;
        apply_retention(repositories, rules, journal).await;
    }
}

/// Closes idle uploads, so that a prune can remove them.
async fn close_idle(registry: &Server<Repositories>) {
    loop {
        tokio::time::sleep(CLOSE).await;
        registry.close_idle_uploads();
    }
}

/// Periodically removes data that is no longer needed; ends with the daemon.
async fn sweep(library: Library) {
    loop {
        // Not at the start, so that an interrupted pull can reuse the tensors that it has
        // converted.
        tokio::time::sleep(SWEEP).await;
        let library = library.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || library.sweep()).await {
            tracing::error!("a collection ended unexpectedly: {error}");
        }
    }
}

/// A folder for sockets, private to this user and removed at the end.
struct SocketFolder(PathBuf);

impl SocketFolder {
    fn create(path: PathBuf) -> Result<Self> {
        // Removes the folder of an earlier process with the same id.
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

pub(crate) async fn told_to_stop() {
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

/// Combines all routes with the middleware of every request.
fn application(daemon: Daemon, registry: Router<Daemon>) -> Router {
    router()
        .method_not_allowed_fallback(error::wrong_method)
        .merge(registry)
        .fallback(error::not_found)
        // Inside of the layers that refuse requests, because a refused request has no route yet.
        .route_layer(axum::middleware::from_fn(metrics::count))
        .layer(axum::middleware::from_fn_with_state(daemon.clone(), guard::check))
        .layer(guard::cors(&daemon.settings))
        .layer(axum::middleware::from_fn_with_state(daemon.journal.clone(), record_unserved))
        .layer(axum::middleware::from_fn(span))
        .with_state(daemon)
}

fn registry(daemon: &Daemon, repositories: Repositories) -> Arc<Server<Repositories>> {
    let options = ServerOptions {
        scheme: if daemon.settings.tls.is_some() { "https" } else { "http" },
        completeness: daemon.settings.registry.completeness,
        rules: daemon.settings.policy.rules.clone(),
        journal: daemon.journal.clone(),
        ..ServerOptions::default()
    };
    Server::new(repositories, daemon.access.clone(), options)
}

/// Adds a span to each request and logs its response. The attributes of traces are not logged.
pub(crate) async fn span(request: Request, next: Next) -> Response {
    use tracing::field::Empty;
    let span = tracing::info_span!(
        "request",
        method = %request.method(),
        path = request.uri().path(),
        otel.name = Empty,
        otel.kind = Empty,
        otel.status_code = Empty,
        http.request.method = Empty,
        http.route = Empty,
        http.response.status_code = Empty,
    );
    let is_traced = trace_context::begin(&span, request.headers());
    let method = request.method().clone();
    async {
        let begin = std::time::Instant::now();
        let mut response = next.run(request).await;
        // Stops browsers from interpreting stored bytes as scripts.
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Ok(server) = HeaderValue::from_str(&VersionResponse::new(env!("CARGO_PKG_VERSION")).products()) {
            response.headers_mut().insert(header::SERVER, server);
        }
        tracing::debug!(status = response.status().as_u16(), elapsed = ?begin.elapsed(), "answered");
        if is_traced {
            trace_context::end(&tracing::Span::current(), method.as_str(), &response);
        }
        response
    }
    .instrument(span)
    .await
}
