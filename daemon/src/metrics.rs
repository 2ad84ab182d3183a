//! `/metrics`: the daemon's metrics in Prometheus format.
//!
//! `docs/operation.md` lists names and labels. Counters are updated where the events happen
//! (`metrics::counter!`). This module describes them, and sets gauges when they are requested.

pub(crate) mod counts;
mod recorder;

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use content::operation::{Context, Result, Unclassified};
use metrics::Unit;

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::blocking;
use crate::trace_context::ServedRoute;
use counts::Counts;
use recorder::Metrics;

/// Installs the metrics recorder.
///
/// # Errors
/// This process has a recorder already.
pub(crate) fn start() -> Result<Counts> {
    let kept = Metrics::default();
    metrics::set_global_recorder(kept.clone()).internal().context("another recorder counts in this process")?;
    describe();
    Ok(Counts::new(kept))
}

fn describe() {
    use metrics::{describe_counter as counter, describe_gauge as gauge, describe_histogram as histogram};
    counter!("lode_requests_total", "Requests, by route, method and status");
    histogram!("lode_request_seconds", Unit::Seconds, "Time to the first byte of an answer, by route");
    counter!("lode_tokens_total", "Tokens by model and kind: prompt, cached (of those), generated");
    histogram!("lode_first_token_seconds", Unit::Seconds, "From a request's arrival to its first word, by model");
    histogram!("lode_between_tokens_seconds", Unit::Seconds, "Mean time between the tokens of an answer, by model");
    counter!("lode_generations_total", "Generations by model and how they ended: stop, length, error, cancelled");
    gauge!("lode_loaded_models", "Models that are loaded");
    gauge!("lode_queued_requests", "Requests that wait for a model");
    gauge!("lode_active_requests", "Requests that use a model");
    counter!("lode_refused_requests_total", "Requests refused because the queue was full or a load failed");
    counter!("lode_loads_total", "Loads that were begun");
    counter!("lode_kv_cache_rebuilds_total", "KV caches rebuilt for another context");
    histogram!("lode_load_seconds", Unit::Seconds, "Time to load a model");
    counter!("lode_evictions_total", "Models unloaded to make room");
    counter!("lode_runner_deaths_total", "Runner processes that ended unexpectedly");
    counter!("lode_fetch_waits_total", "Waits for a blob that another transfer was receiving");
    counter!("lode_pulled_bytes_total", Unit::Bytes, "Bytes fetched from registries");
    counter!("lode_verified_bytes_total", Unit::Bytes, "Bytes hashed and verified against their digests");
    counter!("lode_storage_requests_total", "Requests to object storage, by operation");
    counter!("lode_tier_bytes_total", Unit::Bytes, "Bytes that were copied to the tier and from it");
    counter!("lode_registry_operations_total", "Executed requests of the registry, by repository and operation");
    counter!("lode_registry_received_bytes_total", Unit::Bytes, "Bytes that clients sent to a repository");
    counter!("lode_registry_sent_bytes_total", Unit::Bytes, "Bytes sent to clients of a repository, without links");
    counter!("lode_webhook_events_total", "Events for webhooks, by result: sent, repeated, lost");
    gauge!("lode_stored_bytes", Unit::Bytes, "Bytes of all blobs");
    gauge!("lode_shared_bytes", Unit::Bytes, "Bytes that are not stored because models share blobs");
    gauge!("lode_free_bytes", Unit::Bytes, "Free space on the disk of the store");
}

/// Counts a request and measures the time until its response.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let begin = Instant::now();
    // The label is the route, not the path, since the number of paths grows with the number of
    // models.
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let method = request.method().as_str().to_owned();
    let mut response = next.run(request).await;
    response.extensions_mut().insert(ServedRoute(route.clone()));
    metrics::histogram!("lode_request_seconds", "route" => route.clone()).record(begin.elapsed());
    let status = response.status().as_u16().to_string();
    metrics::counter!("lode_requests_total", "route" => route, "method" => method, "status" => status).increment(1);
    response
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(daemon): State<Daemon>) -> Result<Response, Failed> {
    let free = blocking(&daemon.library, |library| Ok(library.free_space()?)).await?;
    if let Some(measured) = daemon.counts.measured(&daemon.library).await {
        metrics::gauge!("lode_stored_bytes").set(measured.stored as f64);
        metrics::gauge!("lode_shared_bytes").set(measured.shared as f64);
    }
    metrics::gauge!("lode_free_bytes").set(free as f64);
    let scheduled = daemon.scheduler.counts();
    metrics::gauge!("lode_loaded_models").set(scheduled.loaded as f64);
    metrics::gauge!("lode_queued_requests").set(scheduled.waiting as f64);
    metrics::gauge!("lode_active_requests").set(scheduled.active as f64);
    metrics::counter!("lode_loads_total").absolute(scheduled.loads);
    metrics::counter!("lode_kv_cache_rebuilds_total").absolute(scheduled.rebuilds);
    metrics::counter!("lode_evictions_total").absolute(scheduled.evictions);
    metrics::counter!("lode_runner_deaths_total").absolute(scheduled.crashes);
    metrics::counter!("lode_refused_requests_total").absolute(scheduled.refused);
    let content = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((content, daemon.counts.render()).into_response())
}
