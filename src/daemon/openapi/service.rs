//! The operations for who runs the daemon.

use axum::http::Method;
use serde_json::{Map, Value};

use super::operation::{Api, Operation};
use crate::daemon::health::Readiness;

fn get(path: &'static str, summary: &'static str) -> Operation {
    Operation::new(Api::Operation, Method::GET, path, summary)
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        get("/healthz", "Answers as long as the daemon lives").gives_bytes("text/plain"),
        get("/readyz", "Whether something is in the way of requests").gives::<Readiness>().gives_with::<Readiness>(503),
        get("/metrics", "Counters in Prometheus's format").gives_bytes("text/plain"),
        get("/openapi.json", "This document").gives::<Map<String, Value>>(),
    ]
}
