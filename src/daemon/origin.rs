//! Who may speak to a daemon that listens on this machine only.
//!
//! A web page can make its visitor's browser send requests to 127.0.0.1. Two things give it away: the `Host` it was made
//! to believe in (DNS rebinding), and the `Origin` that browsers add to what pages send. Requests that name a host or
//! an origin elsewhere are refused; programs send neither.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Daemon;
use super::error::Failed;

/// Lets requests through that were meant for this machine.
pub(super) async fn check(State(daemon): State<Daemon>, request: Request, next: Next) -> Response {
    let local_only = daemon.config.address.ip().is_loopback();
    for (name, what) in [(header::HOST, "host"), (header::ORIGIN, "origin")] {
        if let Some(value) = text(&request, &name).filter(|value| local_only && !is_local(value)) {
            let message =
                format!("requests for the {what} `{value}` are refused: this daemon serves its own machine only");
            return Failed::new(StatusCode::FORBIDDEN, message).into_response();
        }
    }
    next.run(request).await
}

fn text<'a>(request: &'a Request, name: &HeaderName) -> Option<&'a str> {
    // What is not text is certainly not local.
    request.headers().get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Whether a `Host` or `Origin` names this machine: an address, or `localhost`. Pages of local programs that are not
/// served over HTTP (`app://`, `file://`, …) have no host of their own and count as local; `null` does not.
fn is_local(value: &str) -> bool {
    let host = match value.split_once("://") {
        Some(("http" | "https", host)) => host,
        Some(_) => return true,
        None => value,
    };
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .map_or_else(|| host.rsplit_once(':').map_or(host, |(host, _)| host), |(address, _)| address);
    let host = host.trim_end_matches('.');
    host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_local_from_foreign() {
        for local in [
            "localhost",
            "localhost:11434",
            "127.0.0.1:1",
            "[::1]:1",
            "http://localhost:3000",
            "https://127.0.0.1",
            "app://x",
            "a.localhost",
        ] {
            assert!(is_local(local), "{local}");
        }
        for foreign in [
            "example.com",
            "example.com:11434",
            "http://example.com",
            "null",
            "?",
            "",
            "localhost.example.com",
            "10.0.0.1",
            "http://127.0.0.1.example.com",
        ] {
            assert!(!is_local(foreign), "{foreign}");
        }
    }
}
