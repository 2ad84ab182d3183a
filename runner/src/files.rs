//! The files of the model, which the daemon opens and passes: this process has no path of the store.
//!
//! Standard input is a Unix socket to the daemon. It closes when the daemon ends, in whatever way; then the runner ends.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::DESCRIPTORS;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// How long a file may take to come: the daemon only opens it.
const PATIENCE: Duration = Duration::from_mins(1);

/// Descriptors are for this program only.
#[cfg(target_os = "linux")]
const FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const FLAGS: RecvFlags = RecvFlags::empty();

/// Files that come, in the order of the load plan.
#[derive(Debug)]
pub(crate) struct Files {
    incoming: Receiver<Vec<OwnedFd>>,
    /// Those of the last message that nobody has taken, the next one last.
    some: Vec<OwnedFd>,
    /// Whether the daemon waits for word that the last message's files have been taken.
    owed: bool,
}

impl Files {
    /// Listens on standard input, and ends the process when that closes.
    pub(crate) fn listen() -> Self {
        let (sender, incoming) = channel();
        std::thread::spawn(move || {
            loop {
                match receive() {
                    // Nobody takes them where no model is loaded: they wait, and close with this process.
                    Ok(Some(files)) => drop(sender.send(files)),
                    Ok(None) => std::process::exit(0),
                    Err(Errno::INTR) => {}
                    // Another program has started this one, with a pipe or a terminal.
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
        Self { incoming, some: Vec::new(), owed: false }
    }

    /// The next file.
    ///
    /// # Errors
    /// Where none comes.
    pub(crate) fn next(&mut self) -> Result<OwnedFd> {
        if self.some.is_empty() {
            self.taken()?;
            self.some = match self.incoming.recv_timeout(PATIENCE) {
                Ok(files) => files,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    bail!("the daemon passed no file within {} s", PATIENCE.as_secs())
                }
            };
            self.some.reverse();
            self.owed = true;
        }
        let file = self.some.pop().context("the daemon passed a message without files")?;
        if self.some.is_empty() {
            self.taken()?;
        }
        Ok(file)
    }

    /// Tells the daemon that all files of its last message have been taken.
    fn taken(&mut self) -> Result<()> {
        if std::mem::take(&mut self.owed) {
            rustix::io::write(std::io::stdin().as_fd(), &[1])
                .context("the daemon cannot be told that its files came")?;
        }
        Ok(())
    }
}

/// The files of a message; `None` where standard input has closed.
fn receive() -> Result<Option<Vec<OwnedFd>>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(std::io::stdin().as_fd(), &mut data, &mut ancillary, FLAGS)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files: Vec<OwnedFd> = files.flatten().collect();
    // The system drops descriptors that this process may not have.
    let (came, sent) = (files.len(), usize::from(byte[0]));
    if came == sent {
        return Ok(Some(files));
    }
    tracing::error!("{came} of {sent} descriptors came; allow more open files (`ulimit -n`, `LimitNOFILE`)");
    Err(Errno::MFILE)
}
