//! Runs requests on blocking threads. A request ends with its response, or when its caller stops
//! waiting. Without the second rule, a server that sends a byte now and then would hold a thread
//! and a connection forever.

use std::io;
use std::time::Duration;

use content::Observer;
use content::operation::{OperationError, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::observer::NOBODY;

/// Interval at which an observer is polled.
const ASKED_AGAIN: Duration = Duration::from_millis(250);

/// Keeps requests alive: they are cancelled when this is dropped.
#[derive(Debug)]
pub struct Presence(watch::Sender<()>);

/// Runs requests on a thread that does not belong to the runtime.
#[derive(Clone, Debug)]
pub struct Requests {
    handle: Handle,
    here: watch::Receiver<()>,
}

impl Default for Presence {
    fn default() -> Self {
        Self::new()
    }
}

impl Presence {
    /// Creates a presence without requests.
    pub fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    /// Returns a runner of requests on the current runtime. Its requests end when `self` is
    /// dropped.
    pub fn requests(&self) -> Requests {
        Requests { handle: Handle::current(), here: self.0.subscribe() }
    }
}

impl Requests {
    /// Runs a request and returns its response.
    ///
    /// # Errors
    /// The request fails, or the [`Presence`] was dropped.
    pub fn run<T>(&self, request: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let mut here = self.here.clone();
        let gone = async move { while here.changed().await.is_ok() {} };
        self.handle.block_on(async {
            tokio::select! {
                answer = request => answer,
                () = gone => Err(io::Error::other(NOBODY)),
            }
        })
    }

    /// Whether the [`Presence`] still exists.
    pub fn are_wanted(&self) -> bool {
        self.here.has_changed().is_ok()
    }
}

/// Runs a request on a thread that does not belong to the runtime, while the observer wants to
/// continue.
///
/// # Errors
/// The request fails, or the observer stops.
pub fn observed<T>(handle: &Handle, observer: &dyn Observer, request: impl Future<Output = Result<T>>) -> Result<T> {
    let gone = async {
        while observer.goes_on() {
            tokio::time::sleep(ASKED_AGAIN).await;
        }
    };
    handle.block_on(async {
        tokio::select! {
            answer = request => answer,
            () = gone => Err(OperationError::text(NOBODY)),
        }
    })
}
