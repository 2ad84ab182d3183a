//! Connections: how many there are, how long they may be silent, and how they end.
//!
//! ```text
//! accepted ──▶ a place in the table ──▶ requests, one after the other ──▶ closed by either side, or
//!    │ none is free: the one that has been idle longest gives way            - headers that do not come   headers
//!    └ all are busy: closed                                                  - no request                 idle
//!                                                                            - a body that stops          stall
//! told to stop: no more are accepted, answers go on to their end             - an answer nobody takes     stall
//! ```
//!
//! A client that does nothing holds a place and a file descriptor, and loses both to the next who asks. One that reads slowly
//! holds them for as long as it reads anything.

mod activity;
mod base_url;
mod body;
mod limits;
mod table;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

use activity::Watched;
use body::{Answering, Punctual};
pub(crate) use limits::Limits;
use limits::Times;
use table::{Place, Table};

/// Serves until it is told to stop and every request is answered. Dropping it cuts off what is left.
pub(crate) async fn serve<L>(mut listener: L, routes: Router, limits: Limits, mut stopped: watch::Receiver<bool>)
where
    L: Listener<Addr = SocketAddr>,
{
    let table = Arc::new(Table::new(limits));
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the sender is gone, which is a reason to stop too.
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        // Not beside accepting: what is accepted and not handed out yet must not be dropped.
        while connections.try_join_next().is_some() {}
        let Some(place) = table.admit(peer.ip()) else {
            tracing::debug!(%peer, "a connection is refused: all others are busy");
            metrics::counter!("lode_refused_connections_total").increment(1);
            continue;
        };
        connections.spawn(connection(stream, peer, routes.clone(), place, limits.times, stopped.clone()));
    }
    // The socket is closed while answers go on: who comes now finds nobody.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection<S>(
    stream: S,
    peer: SocketAddr,
    routes: Router,
    place: Place,
    times: Times,
    mut stopped: watch::Receiver<bool>,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let activity = place.activity().clone();
    let stream = TokioIo::new(Watched::new(stream, activity.clone()));
    let answer = service_fn(move |request: Request<Incoming>| {
        let (routes, busy) = (routes.clone(), activity.begin());
        let mut request = request.map(|body| Body::new(Punctual::new(body, times.stall)));
        if let Some(uri) = base_url::corrected(request.uri()) {
            *request.uri_mut() = uri;
        }
        request.extensions_mut().insert(ConnectInfo(peer));
        async move {
            // Routers do not fail.
            let Ok(response) = routes.oneshot(request).await;
            Ok::<_, Infallible>(response.map(|body| Answering::new(body, busy)))
        }
    });
    // Its own time-out for headers counts the time between requests, too.
    let connection =
        http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(None).serve_connection(stream, answer);
    let mut connection = std::pin::pin!(connection);
    let mut ticks = tokio::time::interval(times.tick);
    let mut ends = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, "a connection ended: {error}");
                }
                return;
            }
            () = place.displaced() => return tracing::debug!(%peer, "an idle connection gave way"),
            _ = stopped.wait_for(|stop| *stop), if !ends => {
                ends = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = ticks.tick() => {
                if place.activity().is_over(times) {
                    return tracing::debug!(%peer, "a connection was silent for too long");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
