//! The files of the model, which the daemon opens and passes: this process has no access to the
//! store.
//!
//! Standard input is a Unix socket to the daemon. It closes when the daemon ends for any reason;
//! then the runner ends.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::passing;
use rustix::io::Errno;

/// Longest wait for a file: the daemon only opens it.
const PATIENCE: Duration = Duration::from_mins(1);

/// Incoming files, in the order of the load plan.
#[derive(Debug)]
pub(crate) struct Files {
    source: FileSource,
    /// Files of the last message that are not yet taken, the next one last.
    some: Vec<OwnedFd>,
    /// Whether the last message's files still have to be acknowledged to the daemon.
    owed: bool,
}

/// The source of files.
#[derive(Debug)]
enum FileSource {
    /// Standard input, which a thread reads.
    Input(Receiver<Vec<OwnedFd>>),
    /// A separate socket.
    Socket(UnixStream),
}

impl Files {
    /// Returns the files that arrive on a socket.
    pub(crate) fn of(socket: UnixStream) -> Self {
        Self { source: FileSource::Socket(socket), some: Vec::new(), owed: false }
    }

    /// Returns files that this process already has.
    #[cfg(test)]
    pub(crate) fn given(mut files: Vec<OwnedFd>) -> Self {
        files.reverse();
        let (socket, _) = UnixStream::pair().expect("sockets");
        Self { source: FileSource::Socket(socket), some: files, owed: false }
    }

    /// Starts a thread that reads standard input, and ends the process when it closes.
    pub(crate) fn listen() -> Self {
        let (sender, incoming) = channel();
        std::thread::spawn(move || {
            loop {
                match receive(std::io::stdin().as_fd()) {
                    // Without a load, files wait in the channel, and close with this process.
                    Ok(Some(files)) => drop(sender.send(files)),
                    Ok(None) => std::process::exit(0),
                    // Another program has started this one, with a pipe or a terminal as standard
                    // input.
                    Err(Errno::NOTSOCK) => {
                        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
                        std::process::exit(0);
                    }
                    Err(error) => {
                        tracing::error!("standard input cannot be read: {error}");
                        std::process::exit(1);
                    }
                }
            }
        });
        Self { source: FileSource::Input(incoming), some: Vec::new(), owed: false }
    }

    /// Returns the next file.
    ///
    /// # Errors
    /// Fails if no file arrives.
    pub(crate) fn next(&mut self) -> Result<OwnedFd> {
        if self.some.is_empty() {
            self.taken()?;
            self.some = self.source.next()?;
            self.some.reverse();
            self.owed = true;
        }
        let file = self.some.pop().context("the daemon passed a message without files")?;
        if self.some.is_empty() {
            self.taken()?;
        }
        Ok(file)
    }

    /// Acknowledges to the daemon that all files of its last message have been taken.
    fn taken(&mut self) -> Result<()> {
        if std::mem::take(&mut self.owed) {
            let told = match &mut self.source {
                FileSource::Input(_) => rustix::io::write(std::io::stdin().as_fd(), &[1]).map(drop).map_err(Into::into),
                FileSource::Socket(socket) => socket.write_all(&[1]),
            };
            told.context("cannot acknowledge the files to the daemon")?;
        }
        Ok(())
    }
}

impl FileSource {
    /// Returns the files of the next message.
    fn next(&self) -> Result<Vec<OwnedFd>> {
        let late = || format!("the daemon passed no file within {} s", PATIENCE.as_secs());
        match self {
            Self::Input(incoming) => match incoming.recv_timeout(PATIENCE) {
                Ok(files) => Ok(files),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => bail!(late()),
            },
            Self::Socket(socket) => {
                socket.set_read_timeout(Some(PATIENCE))?;
                let files = receive(socket.as_fd()).with_context(late)?;
                files.context("the daemon passed no more files")
            }
        }
    }
}

/// Receives the files of a message; `None` if the socket is closed.
fn receive(socket: std::os::fd::BorrowedFd<'_>) -> Result<Option<Vec<OwnedFd>>, Errno> {
    let mut count = [0];
    let (received, files) = passing::receive_with(socket, &mut count)?;
    if received == 0 {
        return Ok(None);
    }
    // The kernel drops descriptors that exceed the limit of this process.
    let (came, sent) = (files.len(), usize::from(count[0]));
    if came == sent {
        return Ok(Some(files));
    }
    tracing::error!(
        "received {came} of {sent} file descriptors; raise the limit of open files (`ulimit -n`, `LimitNOFILE`)"
    );
    Err(Errno::MFILE)
}
