//! The process that holds weights on GPUs for all runners: started when the first model may go there, asked what is free, told of runners.
//!
//! It is `lode-runner --hold`, as isolated as runners are. Where it fails, runners load weights by themselves, and the next load starts another:
//! models that are loaded have what they use of it mapped.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use protocol::{Blob, HolderCall, Reserved, Survey, passing};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use crate::isolation::Isolation;
use crate::load_plan::{self, BlobSource, Blobs};
use crate::{Error, RunnerOptions, gpu_driver};

/// How long a GPU's driver may take to start.
const PATIENCE: Duration = Duration::from_mins(1);

/// The holder, where one runs.
#[derive(Debug, Default)]
pub(crate) struct Holder(Arc<Mutex<Option<Running>>>);

#[derive(Debug)]
struct Running {
    /// Killed when this is dropped.
    child: Child,
    control: Arc<UnixStream>,
}

impl Holder {
    /// What is free of the devices that a choice means, and what of these blobs is there. `None` where the choice means no device whose memory
    /// could be held.
    ///
    /// # Errors
    /// The process cannot be started, or says nothing.
    pub(crate) async fn survey(
        &self,
        options: &RunnerOptions,
        device: &str,
        blobs: Vec<String>,
    ) -> Result<Option<Survey>, Error> {
        if !gpu_driver::can_be_meant(device) {
            return Ok(None);
        }
        let call = HolderCall::Survey { device: device.to_owned(), blobs };
        let survey = self
            .ask(options, move |control| {
                passing::send(control, &call, &[])?;
                let reply = passing::receive(control)?;
                reply.map(|(survey, _)| survey).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
            })
            .await?;
        Ok(Some(survey))
    }

    /// Opens a session for a runner that is to load these files; the socket that the runner gets.
    ///
    /// # Errors
    /// The process has ended, and cannot be started.
    pub(crate) async fn hold(
        &self,
        options: &RunnerOptions,
        blobs: Vec<Blob>,
        source: Arc<dyn BlobSource>,
        reserved: Vec<Reserved>,
    ) -> Result<OwnedFd, Error> {
        let pair = || UnixStream::pair().map_err(|error| failed(&error));
        let ((own, theirs), (runner, link)) = (pair()?, pair()?);
        let files = Blobs { source, count: blobs.len() };
        let call = HolderCall::Hold { blobs, reserved };
        self.ask(options, move |control| passing::send(control, &call, &[theirs.as_fd(), link.as_fd()])).await?;
        tokio::spawn(async move {
            // The runner is told by whoever misses files.
            if let Err(error) = load_plan::pass(own, None, files).await {
                tracing::debug!(%error, "the holder takes no files");
            }
        });
        Ok(runner.into())
    }

    /// Ends the process. Where somebody waits for its answer it ends with the daemon, by its standard input.
    pub(crate) async fn end(&self) {
        if let Ok(mut running) = self.0.try_lock()
            && let Some(mut running) = running.take()
        {
            // An error says that it has ended already.
            let _ = running.child.kill().await;
        }
    }

    /// Has the process asked, one question at a time, to the end: whoever gives up waiting leaves no answer for the next. A process that fails is
    /// given up.
    async fn ask<T: Send + 'static>(
        &self,
        options: &RunnerOptions,
        question: impl FnOnce(&UnixStream) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut running = self.0.clone().lock_owned().await;
        let ended = match running.as_mut() {
            Some(running) => running.child.try_wait().map_or(true, |status| status.is_some()),
            None => true,
        };
        if ended {
            gpu_driver::prepare(options).await;
            *running = Some(start(options)?);
        }
        let control = running.as_ref().map(|running| running.control.clone());
        let asked = tokio::spawn(async move {
            let asked = tokio::task::spawn_blocking(move || control.map(|control| question(&control))).await;
            if !matches!(asked, Ok(Some(Ok(_)))) {
                // What it says later would answer another question.
                *running = None;
            }
            asked
        });
        let reason = match asked.await {
            Ok(Ok(Some(Ok(answer)))) => return Ok(answer),
            Ok(Ok(Some(Err(error)))) => error.to_string(),
            _ => "asking it panicked".to_owned(),
        };
        Err(Error::Protocol(format!("the process that holds weights on devices does not answer: {reason}")))
    }
}

fn start(options: &RunnerOptions) -> Result<Running, Error> {
    let (control, own) = UnixStream::pair().map_err(|error| failed(&error))?;
    let timeout = control.set_read_timeout(Some(PATIENCE)).and_then(|()| control.set_write_timeout(Some(PATIENCE)));
    timeout.map_err(|error| failed(&error))?;
    let mut command = Command::new(&options.program);
    command.arg(format!("--hold={}", options.gpu_keep)).kill_on_drop(true);
    if options.isolated {
        command.arg("--isolate");
    }
    command.stdin(OwnedFd::from(own)).stdout(Stdio::null());
    command.env_clear().envs(options.environment.iter().map(|(name, value)| (name, value)));
    let RunnerOptions { program, environment, isolated, .. } = options;
    // What is missing is told with the first runner.
    let _ = Isolation { program, environment, isolated: *isolated, memory_limit: None }.apply(&mut command);
    let child = command
        .spawn()
        .map_err(|source| Error::Start { program: options.program.clone(), source: Arc::new(source) })?;
    tracing::info!(pid = child.id(), "a process holds weights on devices");
    Ok(Running { child, control: Arc::new(control) })
}

fn failed(error: &std::io::Error) -> Error {
    Error::Protocol(format!("there is no socket: {error}"))
}
