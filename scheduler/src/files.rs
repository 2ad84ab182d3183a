//! Files for a runner: the daemon opens them and passes their descriptors, because a runner has no path of the store.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::{DESCRIPTORS, LoadRequest, Reserved, passing};

use crate::{Error, PrivateMemory};

/// How long a runner may take for the files of a message: mapping them, or reading the smallest.
const PATIENCE: Duration = Duration::from_mins(2);

/// What a runner is told, and what it is given.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// What it is told.
    pub request: LoadRequest,
    /// The files of [`LoadRequest::blobs`], in the same order.
    pub files: Vec<PathBuf>,
    /// What is counted for the runner, where that can be; it is then not allowed much more.
    pub private: Option<PrivateMemory>,
    /// What the runner takes of devices for itself, where their weights are held by another process.
    pub held: Option<Vec<Reserved>>,
}

/// Passes a descriptor and opens the files and passes them, a few at a time, each few when the runner has taken those before.
///
/// # Errors
/// A file that cannot be opened, or a runner that takes no more.
pub(crate) async fn pass(socket: UnixStream, first: Option<OwnedFd>, files: Vec<PathBuf>) -> Result<(), Error> {
    // A runner that refuses its load takes no files and stays: nobody is to wait for it for ever.
    socket
        .set_read_timeout(Some(PATIENCE))
        .map_err(|error| Error::Protocol(format!("a socket has no timeout: {error}")))?;
    let passing = tokio::task::spawn_blocking(move || {
        if let Some(first) = first {
            pass_opened(&socket, &[first.as_fd()])?;
        }
        files.chunks(DESCRIPTORS).try_for_each(|some| pass_some(&socket, some))
    });
    passing.await.unwrap_or_else(|_| Err(Error::Protocol("passing files panicked".to_owned())))
}

fn pass_some(socket: &UnixStream, files: &[PathBuf]) -> Result<(), Error> {
    let open = |path: &PathBuf| {
        File::open(path).map_err(|source| Error::File { file: path.clone(), source: Arc::new(source) })
    };
    let opened = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let descriptors: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    pass_opened(socket, &descriptors)
}

fn pass_opened(mut socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Protocol(format!("the runner takes no files of the model: {error}"));
    passing::send_with(socket, &[descriptors.len() as u8], descriptors).map_err(failed)?;
    let mut taken = [0];
    socket.read_exact(&mut taken).map_err(failed)
}
