//! Passing files to a runner. The daemon opens them and sends their descriptors, because a runner
//! cannot access paths of the store.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use protocol::{Blob, DESCRIPTORS, LoadRequest, Reserved, passing};

use crate::{Error, PrivateMemory};

/// How long a runner may take to acknowledge the files of a message: the time to map them, or to
/// read the smallest ones.
const PATIENCE: Duration = Duration::from_mins(2);

/// A load request, the files that belong to it, and the memory that it may take.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The request that the runner receives.
    pub request: LoadRequest,
    /// Opens the files of [`LoadRequest::blobs`].
    pub blobs: Arc<dyn BlobSource>,
    /// Private memory that the plan counts for the runner; the daemon limits the runner to little
    /// more. `None` if it cannot be counted.
    pub private: Option<PrivateMemory>,
    /// Memory that the runner allocates itself on each device. `None` if the runner loads the
    /// weights without the process that shares them.
    pub reserved: Option<Vec<Reserved>>,
}

/// Opens the blobs of a load plan, so that the scheduler needs no path of the store.
pub trait BlobSource: fmt::Debug + Send + Sync {
    /// Opens the file of the entry `index` of [`LoadRequest::blobs`]. The call may block on the
    /// disk.
    ///
    /// # Errors
    /// The file is missing, or the process has no descriptor left.
    fn open(&self, index: usize) -> io::Result<File>;

    /// Returns the error of a file outside of the store that was changed or lost since the plan was
    /// made, which explains the end of a runner. The call may block on the disk.
    fn source_error(&self) -> Option<String>;
}

/// The blobs of a load request, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Blobs {
    source: Arc<dyn BlobSource>,
    /// The name of each blob, for error messages.
    names: Vec<String>,
}

impl Blobs {
    pub(crate) fn new(source: Arc<dyn BlobSource>, blobs: &[Blob]) -> Self {
        Self { source, names: blobs.iter().map(|blob| blob.name.clone()).collect() }
    }

    fn open(&self, index: usize) -> Result<File, Error> {
        let failed = |source| Error::File { file: self.names[index].clone(), source: Arc::new(source) };
        self.source.open(index).map_err(failed)
    }
}

/// Sends `first`, then opens the files and sends their descriptors in batches. Each batch waits
/// until the runner has acknowledged the one before.
///
/// # Errors
/// A file cannot be opened, or the runner does not acknowledge a batch.
pub(crate) async fn pass(socket: UnixStream, first: Option<OwnedFd>, blobs: Blobs) -> Result<(), Error> {
    // A runner that refuses its load stays alive and takes no files, so the wait needs a timeout.
    socket
        .set_read_timeout(Some(PATIENCE))
        .map_err(|error| Error::Protocol(format!("cannot set a timeout on a socket: {error}")))?;
    let passing = tokio::task::spawn_blocking(move || {
        if let Some(first) = first {
            pass_opened(&socket, &[first.as_fd()])?;
        }
        let indexes: Vec<usize> = (0..blobs.names.len()).collect();
        indexes.chunks(DESCRIPTORS).try_for_each(|some| pass_some(&socket, &blobs, some))
    });
    passing.await.unwrap_or_else(|_| Err(Error::Protocol("passing files panicked".to_owned())))
}

fn pass_some(socket: &UnixStream, blobs: &Blobs, indexes: &[usize]) -> Result<(), Error> {
    let opened = indexes.iter().map(|index| blobs.open(*index)).collect::<Result<Vec<_>, _>>()?;
    let descriptors: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    pass_opened(socket, &descriptors)
}

fn pass_opened(mut socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let failed =
        |error: std::io::Error| Error::Protocol(format!("the runner did not accept the model's files: {error}"));
    passing::send_with(socket, &[descriptors.len() as u8], descriptors).map_err(failed)?;
    let mut taken = [0];
    socket.read_exact(&mut taken).map_err(failed)
}
