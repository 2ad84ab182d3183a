//! Traces of requests, sent to a collector.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use reqwest::Method;

use super::{Replica, client, status};

/// A collector that keeps the bodies of requests.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<u8>>>);

impl Collector {
    async fn start() -> (Self, String) {
        let collector = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let take = |State(own): State<Self>, body: Bytes| async move {
            own.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&body);
        };
        let routes = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (collector, url)
    }

    /// Whether the received bytes (Protocol Buffers) contain these, as a text or an id.
    fn has(&self, bytes: &[u8]) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).windows(bytes.len()).any(|window| window == bytes)
    }
}

/// Stops a replica, which sends its last traces, and returns its log.
async fn stop(mut replica: Replica) -> String {
    let told = std::process::Command::new("kill").arg(replica.child.id().to_string()).status();
    assert!(told.expect("kill runs").success());
    let begin = Instant::now();
    while replica.child.try_wait().expect("a child").is_none() {
        assert!(begin.elapsed() < Duration::from_mins(1), "the replica does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    replica.text()
}

#[tokio::test]
async fn requests_continue_the_trace_of_their_client() {
    let (collector, url) = Collector::start().await;
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("OTEL_SERVICE_NAME", "models-registry")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let replica = Replica::start(&["--storage", "memory://"], &environment).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = client().get(replica.url("/v2/team/m/manifests/none"));
    let request = request.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    assert_eq!(request.send().await.expect("an answer").status(), 404);
    let log = stop(replica).await;
    let id: Vec<u8> = (0..16).map(|at| u8::from_str_radix(&trace[2 * at..2 * at + 2], 16).expect("hex")).collect();
    assert!(collector.has(&id), "the trace of the client: {log}");
    for text in ["models-registry", "GET /v2/{*rest}", "http.response.status_code"] {
        assert!(collector.has(text.as_bytes()), "{text}: {log}");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_disturbs_nothing() {
    let url = format!("http://127.0.0.1:{}", crate::server::free_port());
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), url)];
    let replica = Replica::start(&["--storage", "memory://"], &environment).await;
    for _ in 0..50 {
        assert_eq!(status(&client(), Method::GET, replica.url("/v2/")).await, 200);
    }
    let log = stop(replica).await;
    let is_report = |line: &str| {
        (line.contains("WARN") || line.contains("ERROR")) && line.to_lowercase().contains("opentelemetry")
            || line.contains("traces were not exported")
    };
    assert!(log.lines().any(is_report), "the log reports the failure: {log}");
}
