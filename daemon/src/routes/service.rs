//! Calls for operators of the daemon.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::http::{Method, header};
use serde_json::{Map, Value};

use super::{Route, document};
use crate::guard::Scope;
use crate::health::{Readiness, healthz, readyz};
use crate::metrics::metrics;
use crate::openapi::{Api, Operation};

fn get(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Operation, Method::GET, path, summary)
}

pub(super) fn routes() -> Vec<Route> {
    // Generated at the first request.
    let written: Arc<OnceLock<Bytes>> = Arc::default();
    let openapi = async move || {
        let bytes = written.get_or_init(|| document().to_string().into()).clone();
        ([(header::CONTENT_TYPE, "application/json")], bytes)
    };
    vec![
        get("/healthz", "Answers as long as the daemon lives").gives_bytes("text/plain").served_by(healthz),
        get("/readyz", "Whether something is in the way of requests")
            .gives::<Readiness>()
            .gives_with::<Readiness>(503)
            .served_by(readyz),
        get("/metrics", "Counters in Prometheus's format")
            .needs(Scope::Read)
            .gives_bytes("text/plain")
            .served_by(metrics),
        get("/openapi.json", "This document").gives::<Map<String, Value>>().served_by(openapi),
    ]
}
