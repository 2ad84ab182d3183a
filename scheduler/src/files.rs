//! Files for a runner: the daemon opens them and passes their descriptors, because a runner has no path of the store.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::{DESCRIPTORS, LoadRequest};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

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
}

/// Opens the files and passes them, a few at a time, each few when the runner has taken those before.
///
/// # Errors
/// A file that cannot be opened, or a runner that takes no more.
pub(crate) async fn pass(socket: UnixStream, files: Vec<PathBuf>) -> Result<(), Error> {
    // A runner that refuses its load takes no files and stays: nobody is to wait for it for ever.
    socket
        .set_read_timeout(Some(PATIENCE))
        .map_err(|error| Error::Protocol(format!("a socket has no timeout: {error}")))?;
    let passing =
        tokio::task::spawn_blocking(move || files.chunks(DESCRIPTORS).try_for_each(|some| pass_some(&socket, some)));
    passing.await.unwrap_or_else(|_| Err(Error::Protocol("passing files panicked".to_owned())))
}

fn pass_some(mut socket: &UnixStream, files: &[PathBuf]) -> Result<(), Error> {
    let open = |path: &PathBuf| {
        File::open(path).map_err(|source| Error::File { file: path.clone(), source: Arc::new(source) })
    };
    let opened = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let descriptors: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let failed = |error: std::io::Error| Error::Protocol(format!("the runner takes no files of the model: {error}"));
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Error::Protocol("there is no room for the descriptors of a message".to_owned()));
    }
    let count = [descriptors.len() as u8];
    sendmsg(socket.as_fd(), &[IoSlice::new(&count)], &mut ancillary, SendFlags::empty())
        .map_err(|error| failed(error.into()))?;
    let mut taken = [0];
    socket.read_exact(&mut taken).map_err(failed)
}
