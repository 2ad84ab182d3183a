//! Service managers: sockets that they open for the daemon, and notifications that it serves.
//!
//! This is systemd's protocol: `LISTEN_FDS` and `LISTEN_PID` pass sockets, and `NOTIFY_SOCKET`
//! takes messages.

use std::net::SocketAddr;

use content::operation::{Context, Result};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::net::TcpListener;

/// Returns the socket that the service manager has opened, or else a new one at `address`.
///
/// # Errors
/// The address is in use, or the passed descriptor is not a TCP socket.
pub(crate) async fn listener(address: SocketAddr) -> Result<TcpListener> {
    let mut handed = ListenFd::from_env();
    if handed.len() > 0 {
        let socket =
            handed.take_tcp_listener(0).context("the service manager passed a descriptor that is not a TCP socket")?;
        let socket = socket.context("the service manager handed over no socket")?;
        socket.set_nonblocking(true).context("cannot use the socket of the service manager")?;
        return TcpListener::from_std(socket).context("cannot use the socket of the service manager");
    }
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; is a daemon (or Ollama) running there? LODE_HOST chooses another address")
    })
}

/// Notifies the service manager, if there is one, that the daemon serves requests.
pub(crate) fn serving() {
    tell(NotifyState::Ready);
}

/// Notifies the service manager that the daemon is shutting down.
pub(crate) fn stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
