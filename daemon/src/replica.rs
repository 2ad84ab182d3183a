//! A registry without a store of its own: a replica that serves a bucket.
//!
//! It serves the registry protocol, `/healthz`, `/readyz` and `/metrics`, and keeps nothing on this
//! machine. Any number of replicas may serve one bucket, behind any load balancer. When it is told
//! to stop, it accepts no more connections, and running requests may continue for a while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bucket::{Bucket, CollectOptions, Collected, Location};
use content::bail;
use content::operation::{Context, Result, Unclassified};
use registry::server::access::{Access, TokenKey};
use registry::server::retention::{self, Execution, Retained};
use registry::server::{
    CopiedRegistries, Journal, NoJournal, Redirects, RepositoryRules, Server, ServerOptions, record_unserved,
};
use tokio::sync::watch;
use transfer::{BlobSharing, Hosts, PullThrough, RegistrySettings, SyncExecution, SyncTarget, SyncedTag};

use crate::health::{Readiness, healthz};
use crate::metrics::counts::Counts;
use crate::registry_journal::RegistryJournal;
use crate::registry_retention::apply_retention;
use crate::registry_sync::{keep_synced, sync_once};
use crate::serve::{listen, span, told_to_stop};
use crate::settings::{RegistryAccess, RegistryPolicy};
use crate::threads::scarce_threads;
use crate::tls::TlsFiles;
use crate::{access, activation, metrics};

/// Time between two checks for idle uploads.
const CLOSE: Duration = Duration::from_mins(1);
/// Maximum time between the start and the first collection.
const FIRST_COLLECTION: Duration = Duration::from_mins(10);
/// How long events for webhooks may take at the end, even if requests have used up their time.
const LAST_EVENTS: Duration = Duration::from_secs(5);
/// How long the events of a command may take at its end.
const ALL_EVENTS: Duration = Duration::from_mins(1);
/// How long a storage may take to answer the question whether the replica is ready.
const READY: Duration = Duration::from_secs(5);

/// Settings of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaSettings {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Certificate and key; `None` disables TLS.
    pub tls: Option<TlsFiles>,
    /// Access control.
    pub registry: RegistryAccess,
    /// Rules of repositories, the audit log and the webhooks.
    pub policy: RegistryPolicy,
    /// Settings of other registries, for copies of their content.
    pub registries: RegistrySettings,
    /// Registries whose content is copied when a client asks for it.
    pub copied: CopiedRegistries,
    /// The bucket.
    pub storage: Location,
    /// Which clients read large blobs from the storage itself.
    pub redirects: Redirects,
    /// Time between two collections; `None` if another program starts them.
    pub collect_every: Option<Duration>,
    /// How long running requests may continue after the replica was told to stop.
    pub drain: Duration,
}

/// Serves a bucket until the process is told to stop.
///
/// # Errors
/// The replica cannot start; the text states what to change.
pub fn run(settings: ReplicaSettings) -> Result<()> {
    if let Some(reason) = scarce_threads() {
        bail!("{reason}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let drain = settings.drain;
    let served = runtime.block_on(serve(settings));
    runtime.shutdown_timeout(drain.min(Duration::from_secs(5)));
    served
}

/// Removes from a bucket what nothing refers to, or only reports it.
///
/// # Errors
/// The storage cannot be used, or a manifest cannot be read.
pub fn collect(storage: &Location, collection: Collection, options: &CollectOptions) -> Result<Collected> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let bucket = Bucket::open(storage)?;
        Ok(match collection {
            Collection::Remove => bucket.collect(options).await?,
            Collection::Report => bucket.collectable(options).await?,
        })
    })
}

/// Removes tags and manifests of a bucket that no rule keeps, or only reports them.
///
/// # Errors
/// The storage cannot be used, or a manifest cannot be read.
pub fn retain(storage: &Location, policy: &RegistryPolicy, execution: Execution) -> Result<Retained> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let bucket = Bucket::open(storage)?;
    runtime.block_on(journaled(policy, execution == Execution::Remove, async |journal| {
        Ok(retention::retain(&bucket, &policy.rules, journal, execution, SystemTime::now()).await?)
    }))
}

/// Executes rules once. If that changes something, the audit log and the webhooks get entries.
async fn journaled<T>(
    policy: &RegistryPolicy,
    has_changes: bool,
    work: impl AsyncFnOnce(&dyn Journal) -> Result<T>,
) -> Result<T> {
    if !has_changes {
        return work(&NoJournal).await;
    }
    let journal = RegistryJournal::start(policy)?;
    let done = work(journal.journal().as_ref()).await;
    journal.finish(ALL_EVENTS).await;
    done
}

/// Copies tags of other registries to a bucket once, or only reports them.
///
/// # Errors
/// The storage cannot be used, or the repositories of a registry cannot be listed.
pub fn sync(
    storage: &Location,
    registries: &RegistrySettings,
    policy: &RegistryPolicy,
    execution: SyncExecution,
    each: impl FnMut(SyncedTag),
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let hosts = Hosts::new(registries, false);
    let bucket = Bucket::open(storage)?;
    runtime.block_on(journaled(policy, execution == SyncExecution::Copy, async |journal| {
        let to = SyncTarget { storage: &bucket, rules: &policy.rules, journal };
        sync_once(&hosts, &to, &policy.sync, execution, each).await
    }))
}

/// Whether a collection removes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// Removes what nothing refers to.
    Remove,
    /// Only reports it.
    Report,
}

/// The state of the handlers that are not the registry's.
#[derive(Clone)]
struct Replica {
    bucket: Bucket,
    counts: Counts,
}

async fn serve(settings: ReplicaSettings) -> Result<()> {
    ensure_access_is_chosen(&settings)?;
    let listener = activation::listener(settings.address).await?;
    let bucket = Bucket::open(&settings.storage)?;
    bucket.probe(&settings.storage).await.context("the registry cannot start")?;
    if settings.storage.is_memory() {
        tracing::warn!("the registry is in memory: everything is lost when this process ends");
    }
    let access = access(&settings.registry, &bucket).await?;
    let (pulling, sharing) = if access.anyone_may_pull() {
        (Hosts::anonymous(&settings.registries), BlobSharing::All)
    } else {
        (Hosts::new(&settings.registries, false), BlobSharing::Own)
    };
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let completeness = settings.registry.completeness;
    let registry_journal = RegistryJournal::start(&settings.policy)?;
    let journal = registry_journal.journal();
    let rules = settings.policy.rules.clone();
    let options = ServerOptions {
        scheme,
        completeness,
        redirects: settings.redirects,
        rules: rules.clone(),
        copied: Arc::new(settings.copied),
        journal: journal.clone(),
    };
    let storage = PullThrough::new(bucket.clone(), pulling, sharing, &options);
    let registry = Server::replica(storage, access, options);
    let replica = Replica { bucket: bucket.clone(), counts: metrics::start()? };
    let routes = application(replica, registry.clone().router(), journal.clone());
    let (stop, stopped) = watch::channel(false);
    let mut server = listen(listener, settings.tls, routes, stopped)?;
    let hosts = Hosts::new(&settings.registries, false);
    tracing::info!(address = %settings.address, storage = %settings.storage, "listening");
    activation::serving();
    tokio::select! {
        ended = &mut server => return ended.internal().context("serving failed"),
        () = told_to_stop() => tracing::info!("stopping"),
        () = close_idle(&registry) => {}
        () = collections(&bucket, &rules, journal.as_ref(), settings.collect_every) => {}
        () = syncs(&hosts, &bucket, &settings.policy, journal.as_ref()) => {}
    }
    activation::stopping();
    let _ = stop.send(true);
    let end = Instant::now() + settings.drain;
    if tokio::time::timeout(settings.drain, &mut server).await.is_err() {
        tracing::warn!("requests that were not finished are cut off");
        server.abort();
    }
    registry_journal.finish(end.saturating_duration_since(Instant::now()).max(LAST_EVENTS)).await;
    Ok(())
}

/// The default mode lets every client do everything, so it is only for addresses of this machine.
fn ensure_access_is_chosen(settings: &ReplicaSettings) -> Result<()> {
    if !settings.registry.chosen && !settings.address.ip().is_loopback() {
        bail!(
            "LODE_HOST is {}, which other machines reach, and every client could delete everything; set \
             LODE_REGISTRY_MODE to `open`, `read-only`, `anonymous-pull` or `private`",
            settings.address
        );
    }
    Ok(())
}

/// Creates the access control. All replicas sign with the same key, which is in the bucket.
async fn access(settings: &RegistryAccess, bucket: &Bucket) -> Result<Access> {
    if !settings.mode.needs_users() {
        return access::with_key(settings, TokenKey::random());
    }
    let new: [u8; 32] = rand::random();
    let kept = bucket.token_key(&new).await?;
    let key = TokenKey::from_bytes(&kept);
    access::with_key(settings, key.context("`keys/token` in the storage is not a key of 32 bytes; delete it")?)
}

fn application(replica: Replica, registry: Router<Replica>, journal: Arc<dyn Journal>) -> Router {
    Router::new()
        .route("/", get(about))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(rendered))
        .merge(registry)
        .route_layer(axum::middleware::from_fn(metrics::count))
        .layer(axum::middleware::from_fn(refuse_pages))
        .layer(axum::middleware::from_fn_with_state(journal, record_unserved))
        .layer(axum::middleware::from_fn(span))
        .with_state(replica)
}

async fn about() -> &'static str {
    "A registry of Lode. Clients of the OCI distribution protocol find it below /v2/.\n"
}

/// `GET /readyz`: 503 while the storage does not answer.
async fn readyz(State(replica): State<Replica>) -> (StatusCode, Json<Readiness>) {
    let mut problems = Vec::new();
    match tokio::time::timeout(READY, replica.bucket.ready()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => problems.push(error.to_string()),
        Err(_) => problems.push(format!("the storage did not answer within {} s", READY.as_secs())),
    }
    Readiness::of(problems)
}

/// `GET /metrics`.
async fn rendered(State(replica): State<Replica>) -> Response {
    let content = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content, replica.counts.render()).into_response()
}

/// Refuses changes by pages in browsers, which send an `Origin`: in the mode `open`, any page could
/// otherwise change the registry of a machine that its visitor reaches.
async fn refuse_pages(request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read && request.headers().contains_key(header::ORIGIN) {
        return (StatusCode::FORBIDDEN, "pages in browsers may not change this registry\n").into_response();
    }
    next.run(request).await
}

async fn close_idle(registry: &Server<PullThrough<Bucket>>) {
    loop {
        tokio::time::sleep(CLOSE).await;
        registry.close_idle_uploads();
    }
}

/// Copies tags of other registries; without sources, it waits forever.
async fn syncs(hosts: &Hosts, bucket: &Bucket, policy: &RegistryPolicy, journal: &dyn Journal) {
    let to = SyncTarget { storage: bucket, rules: &policy.rules, journal };
    keep_synced(hosts, &to, &policy.sync).await;
    std::future::pending::<()>().await;
}

/// Applies the retention of repositories and collects, again and again, for the first time soon;
/// without an interval, never.
async fn collections(bucket: &Bucket, rules: &RepositoryRules, journal: &dyn Journal, every: Option<Duration>) {
    let Some(every) = every else { return std::future::pending().await };
    let mut pause = every.min(FIRST_COLLECTION);
    loop {
        tokio::time::sleep(pause).await;
        pause = every;
        apply_retention(bucket, rules, journal).await;
        match bucket.collect(&CollectOptions::at(SystemTime::now())).await {
            Ok(done) => {
                tracing::info!(blobs = done.blobs, removed = done.removed, bytes = done.removed_bytes, "collected");
            }
            Err(error) => tracing::warn!("a collection failed, the next one goes on: {error}"),
        }
    }
}
