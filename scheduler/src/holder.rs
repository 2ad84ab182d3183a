//! The holder: a process that keeps weights on GPUs for all runners. The daemon starts it before
//! the first model that may use GPUs, asks it for free memory, and opens sessions for runners.
//!
//! It is `lode-runner --hold` and as isolated as runners are. If it fails, runners load their
//! weights themselves, and the next load starts another holder. Loaded models keep working, because
//! they have mapped the memory that they use.

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

/// The holder process, if one runs.
#[derive(Debug, Default)]
pub(crate) struct Holder(Arc<Mutex<Option<Running>>>);

#[derive(Debug)]
struct Running {
    /// Killed when this is dropped.
    child: Child,
    control: Arc<UnixStream>,
}

impl Holder {
    /// Returns the free memory of the devices that `device` selects, and which of the blobs are on
    /// them. Returns `None` if the selection includes no device whose memory the holder can share.
    ///
    /// # Errors
    /// The process cannot be started, or does not answer.
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

    /// Opens a session for a runner that is about to load these files. Returns the socket for the
    /// runner.
    ///
    /// # Errors
    /// The process has ended and cannot be started again.
    pub(crate) async fn hold(
        &self,
        options: &RunnerOptions,
        blobs: Vec<Blob>,
        source: Arc<dyn BlobSource>,
        reserved: Vec<Reserved>,
    ) -> Result<OwnedFd, Error> {
        let pair = || UnixStream::pair().map_err(|error| failed(&error));
        let ((own, theirs), (runner, link)) = (pair()?, pair()?);
        let files = Blobs::new(source, &blobs);
        let call = HolderCall::Hold { blobs, reserved };
        self.ask(options, move |control| passing::send(control, &call, &[theirs.as_fd(), link.as_fd()])).await?;
        tokio::spawn(async move {
            // A failure is only logged: the runner reports missing files itself.
            if let Err(error) = load_plan::pass(own, None, files).await {
                tracing::debug!(%error, "the holder did not accept the files");
            }
        });
        Ok(runner.into())
    }

    /// Ends the process. If a call is in progress, the process ends with the daemon instead, when
    /// its standard input closes.
    pub(crate) async fn end(&self) {
        if let Ok(mut running) = self.0.try_lock()
            && let Some(mut running) = running.take()
        {
            // An error means that it has already ended.
            let _ = running.child.kill().await;
        }
    }

    /// Sends one request to the process, starting it if necessary, and waits for the answer.
    /// Requests are serialized and run to completion, so that a cancelled caller leaves no answer
    /// for the next request. If a request fails, the process is dropped.
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
                // A late answer would be taken for the answer to another request.
                *running = None;
            }
            asked
        });
        let reason = match asked.await {
            Ok(Ok(Some(Ok(answer)))) => return Ok(answer),
            Ok(Ok(Some(Err(error)))) => error.to_string(),
            _ => "asking it panicked".to_owned(),
        };
        Err(Error::Protocol(format!("the holder process (weights on GPUs) does not answer: {reason}")))
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
    // The first runner reports missing means of isolation.
    let _ = Isolation { program, environment, isolated: *isolated, memory_limit: None }.apply(&mut command);
    let child = command
        .spawn()
        .map_err(|source| Error::Start { program: options.program.clone(), source: Arc::new(source) })?;
    tracing::info!(pid = child.id(), "a process holds weights on devices");
    Ok(Running { child, control: Arc::new(control) })
}

fn failed(error: &std::io::Error) -> Error {
    Error::Protocol(format!("cannot create a socket pair: {error}"))
}
