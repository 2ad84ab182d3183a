//! Service managers: a socket that was opened for the daemon, and word that it serves.
//!
//! systemd's protocol: `LISTEN_FDS` and `LISTEN_PID` hand sockets over, `NOTIFY_SOCKET` takes messages.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::net::TcpListener;

/// The socket that a service manager has opened, else one of our own at `address`.
///
/// # Errors
/// The address is taken, or what was handed over is no TCP socket.
pub(crate) async fn listener(address: SocketAddr) -> Result<TcpListener> {
    let mut handed = ListenFd::from_env();
    if handed.len() > 0 {
        let socket = handed.take_tcp_listener(0).context("the service manager handed over what is no TCP socket")?;
        let socket = socket.context("the service manager handed over no socket")?;
        socket.set_nonblocking(true).context("cannot use the socket of the service manager")?;
        return TcpListener::from_std(socket).context("cannot use the socket of the service manager");
    }
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; is a daemon (or Ollama) running there? LODE_HOST chooses another address")
    })
}

/// Tells the service manager, where there is one, that requests are served.
pub(crate) fn serving() {
    tell(NotifyState::Ready);
}

/// Tells it that the daemon ends.
pub(crate) fn stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}
