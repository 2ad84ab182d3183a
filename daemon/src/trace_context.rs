//! Traces of `OpenTelemetry`: requests continue the trace of their client (`traceparent`,
//! <https://www.w3.org/TR/trace-context/>), and their spans get the attributes of HTTP servers.
//!
//! The program installs the exporter. Without one, nothing here has an effect.

use axum::http::HeaderMap;
use axum::response::Response;
use opentelemetry::global;
use opentelemetry::propagation::Extractor;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The route of a request, as an extension of its response.
#[derive(Clone, Debug)]
pub(crate) struct ServedRoute(pub(crate) String);

/// The headers of a request.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}

/// Makes the span of a request a part of the client's trace. Call it before the span is entered.
/// Returns whether spans are exported.
pub(crate) fn begin(span: &Span, headers: &HeaderMap) -> bool {
    let parent = global::get_text_map_propagator(|propagator| propagator.extract(&Headers(headers)));
    span.set_parent(parent).is_ok()
}

/// Adds the attributes that are known after the response.
pub(crate) fn end(span: &Span, method: &str, response: &Response) {
    span.record("otel.kind", "server");
    span.record("http.request.method", method);
    span.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    if let Some(ServedRoute(route)) = response.extensions().get() {
        span.record("otel.name", format!("{method} {route}"));
        span.record("http.route", route);
    }
}
