//! A runner's process: starting, awaiting and killing it. The owner of a [`Process`] reaps it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::isolation::{self, Isolation};
use crate::load_plan::BlobSource;
use crate::machine::End;
use crate::{Error, Runner, RunnerOptions};

/// How often a process that is about to end is checked, and the pause between two checks.
const LAST_TRIES: usize = 20;
const MOMENT: Duration = Duration::from_millis(20);
/// How long to look for the reason of an end in files, whose disk may not answer.
const LOOK: Duration = Duration::from_secs(2);

impl RunnerOptions {
    fn isolation(&self) -> Isolation<'_> {
        let Self { program, environment, isolated, memory_limit, .. } = self;
        Isolation { program, environment, isolated: *isolated, memory_limit: *memory_limit }
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if self.isolated {
            arguments.push("--isolate".into());
        }
        if let Some(threads) = self.threads {
            arguments.extend(["--threads".into(), threads.to_string().into()]);
        }
        if let Some(cpu) = &self.cpu {
            arguments.extend(["--cpu".into(), cpu.name().into()]);
        }
        arguments
    }
}

/// Logs which restrictions the first runner lacks.
fn report(options: &RunnerOptions, mut missing: Vec<String>, pid: Option<u32>) {
    if options.isolated && !pid.is_none_or(isolation::is_filtered) {
        missing.push("this kernel does not support seccomp filters".to_owned());
    }
    for reason in missing {
        tracing::warn!("runners are not fully isolated: {reason}");
    }
}

/// A process that serves the runner protocol on a socket. Dropping it before its end kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The runner ends when this socket closes, even if the daemon is killed. It also transports
    /// files.
    parent: UnixStream,
    socket: PathBuf,
    /// How the process ended; watched by its clients.
    ended: watch::Sender<Option<String>>,
    /// The files of its model.
    blobs: Arc<dyn BlobSource>,
}

impl Process {
    /// Starts a process. It does not serve yet, see [`Runner::wait_until_it_serves`].
    pub(crate) fn start(options: &RunnerOptions, blobs: Arc<dyn BlobSource>) -> Result<(Self, Runner), Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        static REPORTED: AtomicBool = AtomicBool::new(false);
        let failed = |source| Error::Start { program: options.program.clone(), source: Arc::new(source) };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = options.sockets.join(format!("{number}.sock"));
        // Removes a stale socket of an earlier process with this number, if there is one.
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(&options.program);
        let (parent, own) = UnixStream::pair().map_err(failed)?;
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        command.args(options.arguments()).kill_on_drop(true);
        command.stdin(OwnedFd::from(own)).stdout(OwnedFd::from(listener));
        command.env_clear().envs(options.environment.iter().map(|(name, value)| (name, value)));
        let missing = options.isolation().apply(&mut command);
        let child = command.spawn().map_err(failed)?;
        if !REPORTED.swap(true, Ordering::Relaxed) {
            report(options, missing, child.id());
        }
        let (ended, watched) = watch::channel(None);
        let runner = Runner::new(socket.clone(), child.id().unwrap_or_default(), watched)?;
        Ok((Self { child, parent, socket, ended, blobs }, runner))
    }

    /// Returns the socket that files are sent on.
    pub(crate) fn files(&self) -> Result<UnixStream, Error> {
        let source = |error| Error::Protocol(format!("no files can be passed to the runner: {error}"));
        self.parent.try_clone().map_err(source)
    }

    /// Waits until the process has ended by itself. The future may be dropped and the call
    /// repeated.
    pub(crate) async fn wait(&mut self) -> End {
        let end = match self.child.wait().await {
            Ok(status) => self.explained(end_of(status)).await,
            Err(error) => End::Other(error.to_string()),
        };
        self.ended.send_replace(Some(end.describe().to_owned()));
        end
    }

    /// Adds the file of the model that was changed or lost, if there is one: a mapped file that was
    /// truncated ends the process with a signal.
    async fn explained(&self, end: End) -> End {
        let End::Other(reason) = end else { return end };
        let blobs = self.blobs.clone();
        let found = tokio::time::timeout(LOOK, tokio::task::spawn_blocking(move || blobs.source_error())).await;
        match found {
            Ok(Ok(Some(error))) => End::Other(format!("{reason}: {error}")),
            _ => End::Other(reason),
        }
    }

    /// Like [`Process::wait`], with a timeout.
    pub(crate) async fn wait_for(&mut self, time: Duration) -> Option<End> {
        tokio::time::timeout(time, self.wait()).await.ok()
    }

    /// Kills a process that no longer works and waits until it is gone. Its clients receive
    /// `reason`.
    pub(crate) async fn give_up(&mut self, reason: String) -> End {
        let _ = self.child.start_kill();
        // If the system does not release the process, nothing more can be done.
        let _ = self.child.wait().await;
        self.ended.send_replace(Some(reason.clone()));
        End::Other(reason)
    }

    /// Kills the process and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> End {
        // An error means that it has already ended.
        let _ = self.child.start_kill();
        self.wait().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Dropping the handle kills the process; here only the name of the socket is removed.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Reaps helper processes that a runner has left behind. The daemon becomes their parent if it is
/// the first process of a container.
pub(crate) async fn reap(pids: &[u32]) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        for _ in 0..LAST_TRIES {
            // The helper ends shortly after its runner. An error means that another process is its
            // parent.
            if !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
                break;
            }
            tokio::time::sleep(MOMENT).await;
        }
    }
}

/// Classifies the end of a process. The kernel sends signal 9 when memory is short. A program
/// aborts with signal 6 when an allocation fails. Shells and containers report signal 9 as status
/// 137.
fn end_of(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt;
    let killed = matches!(status.signal(), Some(9 | 6)) || status.code() == Some(137);
    if killed { End::Killed(status.to_string()) } else { End::Other(status.to_string()) }
}
