//! A runner's process: started, awaited, killed. Who has it reaps it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use protocol::InstructionSet;
use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::isolation::{self, Isolation};
use crate::machine::End;
use crate::{Error, Runner};

/// How often, and after what time, a process that must end soon is looked at.
const LAST_TRIES: usize = 20;
const MOMENT: Duration = Duration::from_millis(20);

/// How runners are started.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The program.
    pub program: PathBuf,
    /// Where sockets go; private to the user. Short: a socket's path has a hundred characters at most.
    pub sockets: PathBuf,
    /// Their whole environment: nothing of the daemon's own, which may have tokens, is passed on.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether they have no network, other programs and files, but what drivers need.
    pub isolated: bool,
    /// How long each may be without a sign of life, once it has loaded; `None` is for ever.
    pub patience: Option<Duration>,
    /// Bytes of private memory that each may have.
    pub memory_limit: Option<u64>,
    /// What stays on GPUs of weights that nobody uses: bytes of each, or a part of it (`25%`).
    pub gpu_keep: String,
    /// How many threads compute on the CPU; what the machine has where it is not said.
    pub threads: Option<usize>,
    /// The instructions that kernels on the CPU are made of; the best that the machine has where it is not said.
    pub cpu: Option<InstructionSet>,
}

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

/// Tells people what the first runner keeps of what it was to lose.
fn report(options: &RunnerOptions, mut missing: Vec<String>, pid: Option<u32>) {
    if options.isolated && !pid.is_none_or(isolation::is_filtered) {
        missing.push("this kernel takes no filter of system calls".to_owned());
    }
    for reason in missing {
        tracing::warn!("runners are not fully isolated: {reason}");
    }
}

/// A process that serves the runner protocol on a socket. It is killed where this is dropped before its end.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The runner ends when this closes, also when the daemon is killed. Files are passed by it.
    parent: UnixStream,
    socket: PathBuf,
    /// How it ended, for those who talk to it.
    ended: watch::Sender<Option<String>>,
}

impl Process {
    /// Starts a process. It does not serve yet, see [`Runner::wait_until_it_serves`].
    pub(crate) fn start(options: &RunnerOptions) -> Result<(Self, Runner), Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        static REPORTED: AtomicBool = AtomicBool::new(false);
        let failed = |source| Error::Start { program: options.program.clone(), source: Arc::new(source) };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = options.sockets.join(format!("{number}.sock"));
        // A socket of an earlier process with this number, if any.
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
        Ok((Self { child, parent, socket, ended }, runner))
    }

    /// By what files are passed to it.
    pub(crate) fn files(&self) -> Result<UnixStream, Error> {
        let source = |error| Error::Protocol(format!("no files can be passed to the runner: {error}"));
        self.parent.try_clone().map_err(source)
    }

    /// Waits until the process has ended by itself. May be dropped and called again.
    pub(crate) async fn wait(&mut self) -> End {
        let end = match self.child.wait().await {
            Ok(status) => end_of(status),
            Err(error) => End::Other(error.to_string()),
        };
        self.ended.send_replace(Some(end.describe().to_owned()));
        end
    }

    /// The same, where it ends soon.
    pub(crate) async fn wait_for(&mut self, time: Duration) -> Option<End> {
        tokio::time::timeout(time, self.wait()).await.ok()
    }

    /// Kills a process that does not work any more and waits until it is gone. Those who talk to it are told why.
    pub(crate) async fn give_up(&mut self, reason: String) -> End {
        let _ = self.child.start_kill();
        // Nothing more can be done where the system does not give it up.
        let _ = self.child.wait().await;
        self.ended.send_replace(Some(reason.clone()));
        End::Other(reason)
    }

    /// Kills the process and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> End {
        // An error says that it has ended already.
        let _ = self.child.start_kill();
        self.wait().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process is killed by its handle; the socket is only a name.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Reaps processes that a runner has left, where they have become ours: they do where this is the first process of a container.
pub(crate) async fn reap(pids: &[u32]) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        for _ in 0..LAST_TRIES {
            // It ends with its runner, a moment later. An error says that it is somebody else's.
            if !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
                break;
            }
            tokio::time::sleep(MOMENT).await;
        }
    }
}

/// The kernel kills with signal 9 where memory is short; a program that is refused an allocation aborts, with signal 6.
/// Shells and containers tell of signal 9 as status 137.
fn end_of(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt;
    let killed = matches!(status.signal(), Some(9 | 6)) || status.code() == Some(137);
    if killed { End::Killed(status.to_string()) } else { End::Other(status.to_string()) }
}
