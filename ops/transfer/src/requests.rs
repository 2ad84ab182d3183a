//! How threads that block run requests: until there is an answer, or nobody waits for what it is for. A server that sends a byte now and
//! then would hold a thread and a connection for ever.

use std::io;
use std::time::Duration;

use anyhow::Result;
use library::{NOBODY, Observer};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How often an observer is asked whether to go on.
const ASKED_AGAIN: Duration = Duration::from_millis(250);

/// Somebody waits, for as long as this is not dropped.
#[derive(Debug)]
pub(crate) struct Presence(watch::Sender<()>);

/// Runs the requests of a thread that is none of the runtime's own.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    handle: Handle,
    here: watch::Receiver<()>,
}

impl Presence {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    /// What runs requests for whoever is here, on this runtime.
    pub(crate) fn requests(&self) -> Requests {
        Requests { handle: Handle::current(), here: self.0.subscribe() }
    }
}

impl Requests {
    /// The answer to a request.
    ///
    /// # Errors
    /// The request's, or nobody waits any more.
    pub(crate) fn run<T>(&self, request: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let mut here = self.here.clone();
        let gone = async move { while here.changed().await.is_ok() {} };
        self.handle.block_on(async {
            tokio::select! {
                answer = request => answer,
                () = gone => Err(io::Error::other(NOBODY)),
            }
        })
    }

    /// Whether somebody waits.
    pub(crate) fn are_wanted(&self) -> bool {
        self.here.has_changed().is_ok()
    }
}

/// The answer to a request on a thread that is none of the runtime's own, for as long as an observer wants it.
///
/// # Errors
/// The request's, or the observer says not to go on.
pub(crate) fn observed<T>(
    handle: &Handle,
    observer: &dyn Observer,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let gone = async {
        while observer.goes_on() {
            tokio::time::sleep(ASKED_AGAIN).await;
        }
    };
    handle.block_on(async {
        tokio::select! {
            answer = request => answer,
            () = gone => Err(anyhow::anyhow!(NOBODY)),
        }
    })
}
