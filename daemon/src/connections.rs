//! Connections: their number, how long they may be silent, and how they end.
//!
//! A new connection gets a place in the table. If no place is free, the connection that has been
//! idle for the longest is closed; if all are busy, the new one is refused. A connection serves one
//! request after the other. Either side may close it, and the daemon closes it after a timeout:
//!
//! - `headers`: the headers of a request do not arrive.
//! - `idle`: there is no request.
//! - `stall`: a body stops arriving, or the client does not read an answer.
//!
//! When the daemon stops, it accepts no more connections and completes the running answers.
//!
//! An idle client holds a place and a file descriptor and loses both to the next client. A slow
//! reader keeps them as long as it reads at all.

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
pub(crate) use limits::ConnectionLimits;
use limits::Times;
use table::{ConnectionEntry, Table};

/// Serves until it is stopped and every request is answered. Dropping the future closes the
/// remaining connections.
pub(crate) async fn serve<L>(
    mut listener: L,
    routes: Router,
    limits: ConnectionLimits,
    mut stopped: watch::Receiver<bool>,
) where
    L: Listener<Addr = SocketAddr>,
{
    let table = Arc::new(Table::new(limits));
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the sender is gone, which is also a reason to stop.
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        // Not a branch of the `select!` above: cancelling `accept` could lose an accepted
        // connection.
        while connections.try_join_next().is_some() {}
        let Some(place) = table.admit(peer.ip()) else {
            tracing::debug!(%peer, "a connection is refused: all others are busy");
            metrics::counter!("lode_refused_connections_total").increment(1);
            continue;
        };
        connections.spawn(connection(stream, peer, routes.clone(), place, limits.times, stopped.clone()));
    }
    // Closes the socket while answers complete, so that new clients are refused at once.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection<S>(
    stream: S,
    peer: SocketAddr,
    routes: Router,
    place: ConnectionEntry,
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
    // The time-out of hyper for headers would also count the time between requests.
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
            () = place.displaced() => return tracing::debug!(%peer, "an idle connection was closed to make room"),
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
