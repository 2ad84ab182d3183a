//! The process that holds weights on GPUs for all runners of a daemon: `lode-runner --hold`. See
//! [`protocol::HolderCall`].
//!
//! An array is on a device once, even if several models contain it. Its key is the digest of its
//! blob and its place in the blob. Runners map it. Unused arrays stay within a limit, so that a
//! model that is loaded again, or that differs little from another, copies only the missing arrays.
//!
//! # Invariants
//! - Only this process writes arrays, from files that the daemon has opened. It parses none of
//!   them.
//! - A runner that ends for any reason closes its socket, and thereby releases its arrays.
//! - The process ends when the daemon closes its standard input. Arrays stay alive in the runners
//!   that map them.

mod ahead;
mod arrays;
#[cfg(test)]
pub(crate) mod in_process;
mod memory;
mod session;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use ::device::SlabUse;
use anyhow::{Context, Result};
use protocol::{Blob, HolderCall, Reserved, Survey, SurveyedDevice, UnusableDevice, passing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::{self, ShareableDevice};
use crate::files::Files;
use memory::{DeviceMemory, SessionId};
use session::Session;

/// Limit on the arrays that stay without a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Number of bytes on each device.
    Bytes(u64),
    /// Percentage of each device's memory.
    Percent(u64),
}

impl std::str::FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is neither bytes nor a percentage"));
        match text.strip_suffix('%') {
            Some(percent) => number(percent).map(Self::Percent),
            None => number(text).map(Self::Bytes),
        }
    }
}

impl Keep {
    fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => total / 100 * percent.min(100),
        }
    }
}

/// Time to wait for ended runners to release their arrays.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which unused arrays may exceed the limit. A model that is unloaded for another is
/// followed by it, and may share arrays with it.
const GRACE: Duration = Duration::from_secs(5);

/// The devices that have been requested so far, by name.
#[derive(Debug)]
struct Devices {
    all: Mutex<HashMap<String, Arc<Mutex<DeviceMemory>>>>,
    keep: Keep,
    /// The sockets of runners whose sessions have not ended.
    runners: Mutex<HashMap<SessionId, UnixStream>>,
    /// Signals that a session has ended.
    ended: Condvar,
    /// Time of the last start or end of a session, or survey.
    last_change: Mutex<Instant>,
    /// Whether a session's thread is waiting to trim unused arrays.
    is_trimming: AtomicBool,
}

/// Serves the daemon until it closes standard input.
///
/// # Errors
/// The daemon sends a message that cannot be decoded.
pub(crate) fn run(keep: Keep) -> Result<()> {
    let input = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned()?;
    let daemon = UnixStream::from(input);
    let devices = Devices::new(keep);
    let mut sessions = 0;
    while let Some((call, sockets)) =
        passing::receive::<HolderCall>(&daemon).context("cannot read a request from the daemon")?
    {
        match call {
            HolderCall::Survey { device, blobs } => passing::send(&daemon, &devices.survey(&device, &blobs), &[])?,
            HolderCall::Hold { blobs, reserved } => {
                let Ok([files, runner]): Result<[OwnedFd; 2], _> = sockets.try_into() else {
                    tracing::error!(
                        "the daemon passed no sockets for a session; raise the limit of open files (`ulimit -n`)"
                    );
                    continue;
                };
                let (files, runner) = (Files::of(UnixStream::from(files)), UnixStream::from(runner));
                // A session that cannot begin closes its socket, so the runner notices.
                if let Err(error) = devices.hold(SessionId(sessions), (blobs, files), &reserved, runner) {
                    tracing::error!("a session cannot begin: {error:#}");
                }
                sessions += 1;
            }
        }
    }
    Ok(())
}

impl Devices {
    fn new(keep: Keep) -> Arc<Self> {
        Arc::new(Self {
            all: Mutex::default(),
            keep,
            runners: Mutex::default(),
            ended: Condvar::new(),
            last_change: Mutex::new(Instant::now()),
            is_trimming: AtomicBool::new(false),
        })
    }

    /// Begins a runner's session in a thread of its own. Its planned memory is reserved when this
    /// returns.
    fn hold(
        self: &Arc<Self>,
        id: SessionId,
        (blobs, files): (Vec<Blob>, Files),
        reserved: &[Reserved],
        runner: UnixStream,
    ) -> Result<()> {
        self.begin(id, &runner)?;
        let mut session = Session::new(id, self.clone(), runner);
        let kept = session.reserve(reserved, &blobs);
        let devices = self.clone();
        let serve = move || {
            match kept {
                Ok(()) => session.run(&blobs, files),
                Err(error) => session.end_with(&error),
            }
            devices.trim_later();
        };
        Builder::new().name("session".to_owned()).spawn(serve)?;
        Ok(())
    }

    fn begin(&self, session: SessionId, runner: &UnixStream) -> Result<()> {
        self.runners.lock().unwrap_or_else(PoisonError::into_inner).insert(session, runner.try_clone()?);
        self.changed();
        Ok(())
    }

    /// Notes that a session has released all of its arrays.
    fn end(&self, session: SessionId) {
        self.runners.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
        self.ended.notify_all();
        self.changed();
    }

    fn changed(&self) {
        *self.last_change.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until no session has begun or ended for a while, then evicts unused arrays beyond the
    /// limit. One session's thread does so for all.
    fn trim_later(&self) {
        if self.is_trimming.swap(true, Ordering::Relaxed) {
            return;
        }
        let left = || {
            let last = *self.last_change.lock().unwrap_or_else(PoisonError::into_inner);
            GRACE.checked_sub(last.elapsed()).filter(|left| !left.is_zero())
        };
        while let Some(left) = left() {
            std::thread::sleep(left);
        }
        // Sessions that end from now on start a wait of their own.
        self.is_trimming.store(false, Ordering::Relaxed);
        let all: Vec<_> = self.all.lock().unwrap_or_else(PoisonError::into_inner).clone().into_iter().collect();
        for (device, memory) in all {
            let bytes = memory.lock().unwrap_or_else(PoisonError::into_inner).trim();
            if bytes > 0 {
                tracing::info!(device, bytes, "evicted unused weights");
            }
        }
    }

    /// Waits until ended runners have released their arrays, because the daemon plans with that
    /// memory.
    fn settle(&self) {
        let runners = self.runners.lock().unwrap_or_else(PoisonError::into_inner);
        let any_gone = |runners: &mut HashMap<SessionId, UnixStream>| runners.values().any(is_gone);
        // A runner that takes longer still counts as using its memory.
        drop(self.ended.wait_timeout_while(runners, PATIENCE, any_gone));
    }

    /// Returns the memory of a device, and opens the device first if necessary.
    fn memory(&self, name: &str) -> Result<Arc<Mutex<DeviceMemory>>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = all.get(name) {
            return Ok(memory.clone());
        }
        let vault = device::vault(name)?;
        let (_, total) = vault.memory(SlabUse::default(), 0)?;
        let memory = Arc::new(Mutex::new(DeviceMemory::new(vault, self.keep.of(total))));
        all.insert(name.to_owned(), memory.clone());
        Ok(memory)
    }

    fn survey(&self, choice: &str, blobs: &[String]) -> Survey {
        self.settle();
        self.changed();
        let mut survey = Survey::default();
        for found in device::shareable(choice) {
            let held = match found {
                Ok(held) => held,
                Err(unusable) => {
                    survey.unusable.push(unusable);
                    continue;
                }
            };
            match self.surveyed(&held, blobs) {
                Ok(device) => survey.devices.push(device),
                Err(error) => survey.unusable.push(UnusableDevice { name: held.name, reason: format!("{error:#}") }),
            }
        }
        survey
    }

    fn surveyed(&self, held: &ShareableDevice, blobs: &[String]) -> Result<SurveyedDevice> {
        let ShareableDevice { name, index, description } = held;
        let memory = self.memory(name)?;
        let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let (free, total) = memory.free().unwrap_or_else(|error| {
            // A device that has failed stays unusable for this process; the daemon starts another
            // one.
            tracing::error!(device = %name, "the device has failed: {error:#}");
            std::process::exit(1)
        });
        let device = protocol::Device {
            name: name.clone(),
            description: description.clone(),
            free: Some(free),
            total: Some(total),
        };
        Ok(SurveyedDevice { device, index: *index, shared: memory.shared(blobs), there: memory.there(blobs) })
    }
}

/// Returns whether the peer has closed the socket.
fn is_gone(socket: &UnixStream) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|_| polled[0].revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests {
    use super::Keep;

    #[test]
    fn what_stays_is_bytes_or_a_part() {
        assert_eq!("0".parse::<Keep>().expect("bytes").of(1000), 0);
        assert_eq!("25%".parse::<Keep>().expect("a part").of(1000), 250);
        assert_eq!("900%".parse::<Keep>().expect("a part").of(1000), 1000);
        for wrong in ["", "%", "-1", "a", "1GiB"] {
            assert!(wrong.parse::<Keep>().is_err(), "{wrong}");
        }
    }
}
