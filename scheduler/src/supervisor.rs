//! The life of one runner: start, load, serve, end. The supervisor reports every transition.
//!
//! The last report is always [`Report::Ended`], and the process has been reaped by then.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use protocol::{Blob, ContextRequest, FailureKind, LoadReply, LoadRequest, Reserved, Status};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::gpu_driver;
use crate::heartbeat;
use crate::holder::Holder;
use crate::load_plan::{BlobSource, Blobs, LoadPlan};
use crate::machine::{End, RunnerFailure};
use crate::{Error, PrivateMemory, Runner, RunnerOptions, private_memory};
#[cfg(not(feature = "schedules"))]
use crate::{
    load_plan::pass,
    process::{Process, reap},
};
// A fake process, for testing the order of tasks.
#[cfg(feature = "schedules")]
use crate::schedules::{Process, pass, reap};

/// How long to wait for the end of the process after a call broke off.
const LAST_MOMENTS: Duration = Duration::from_millis(200);

/// A command for a runner. A runner also ends when the sender of commands is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Build a KV cache with this many tokens per sequence.
    Rebuild { context: u64 },
    /// End at once.
    Kill,
}

/// A transition of the runner.
#[derive(Debug)]
pub(crate) enum Report {
    Loaded(Arc<Runner>, LoadReply),
    Rebuilt(LoadReply),
    /// A load or a new KV cache failed; the process is still alive.
    Failed(RunnerFailure),
    Ended(End),
}

/// The current task of a runner besides serving requests.
type Work = BoxFuture<'static, Result<Done, Error>>;

enum Done {
    Loaded(LoadReply),
    Rebuilt(LoadReply),
}

/// Runs a runner from its start to its end.
pub(crate) async fn supervise(
    options: RunnerOptions,
    holder: Arc<Holder>,
    plan: LoadPlan,
    commands: UnboundedReceiver<Command>,
    report: impl Fn(Report) + Send,
) {
    gpu_driver::prepare(&options).await;
    let end = match Process::start(&options, plan.blobs.clone()) {
        Ok((process, runner)) => {
            let runner = Arc::new(runner);
            // A configured limit replaces the estimated one.
            let private = plan.private.clone().filter(|_| options.memory_limit.is_none());
            let memory = Allowance { private, runner: runner.clone() };
            let weights = Weights { holder, options: options.clone() };
            let subject = Subject { process, runner: runner.clone(), memory, patience: options.patience, weights };
            let end = live(subject, plan, commands, &report).await;
            reap(runner.helpers()).await;
            end
        }
        Err(error) => {
            report(Report::Failed(RunnerFailure::Broken(error)));
            End::Other("it was not started".to_owned())
        }
    };
    report(Report::Ended(end));
}

/// The supervised runner.
struct Subject {
    process: Process,
    runner: Arc<Runner>,
    memory: Allowance,
    patience: Option<Duration>,
    weights: Weights,
}

/// The holder process and the options for starting it.
struct Weights {
    holder: Arc<Holder>,
    options: RunnerOptions,
}

/// The limit of a runner's private memory, if it is derived from a plan.
#[derive(Clone)]
struct Allowance {
    private: Option<PrivateMemory>,
    runner: Arc<Runner>,
}

impl Allowance {
    /// Sets the limit that `limit` computes from the estimate. Runners with a GPU driver get no
    /// limit, because the estimate does not include the driver's memory.
    fn set(&self, status: &Status, limit: impl FnOnce(&PrivateMemory) -> u64) {
        let has_no_driver = status.is_for_cpu || (cfg!(target_os = "linux") && !gpu_driver::is_there());
        if let Some(private) = self.private.as_ref().filter(|_| has_no_driver)
            && let Err(error) = private_memory::limit(self.runner.pid(), limit(private))
        {
            tracing::warn!("the memory of a runner is not limited: {error}");
        }
    }
}

async fn live(
    subject: Subject,
    plan: LoadPlan,
    mut commands: UnboundedReceiver<Command>,
    report: &(impl Fn(Report) + Send),
) -> End {
    let Subject { mut process, runner, memory, patience, weights } = subject;
    let LoadPlan { request, .. } = &plan;
    let mut cache = cache_of(request);
    let mut work = load(runner.clone(), memory.clone(), process.files(), weights, plan);
    // Watched only after the load, which has its own timeout.
    let mut silence: BoxFuture<'static, String> = pending().boxed();
    loop {
        let result = tokio::select! {
            end = process.wait() => return end,
            command = commands.recv() => match command {
                Some(Command::Rebuild { context }) => {
                    let from = cache;
                    cache.context = context;
                    work = rebuild(runner.clone(), memory.clone(), from, cache);
                    continue;
                }
                Some(Command::Kill) | None => return process.kill().await,
            },
            reason = &mut silence => return process.give_up(reason).await,
            result = &mut work => result,
        };
        work = pending().boxed();
        match result {
            Ok(Done::Loaded(reply)) => {
                if let Some(patience) = patience {
                    silence = heartbeat::silence(runner.clone(), patience).boxed();
                }
                report(Report::Loaded(runner.clone(), reply));
            }
            Ok(Done::Rebuilt(reply)) => report(Report::Rebuilt(reply)),
            Err(error) => {
                // The exit status explains more than the failed call.
                if let Some(end) = process.wait_for(LAST_MOMENTS).await {
                    return end;
                }
                report(Report::Failed(failure(error)));
            }
        }
    }
}

impl Weights {
    /// Opens a session with the holder for these files. Returns `None` on failure; the runner then
    /// loads the weights itself.
    async fn link(&self, blobs: &[Blob], source: &Arc<dyn BlobSource>, reserved: Vec<Reserved>) -> Option<OwnedFd> {
        let link = self.holder.hold(&self.options, blobs.to_vec(), source.clone(), reserved).await;
        link.inspect_err(|error| tracing::warn!(%error, "weights on devices are not shared between models")).ok()
    }
}

fn cache_of(request: &LoadRequest) -> ContextRequest {
    ContextRequest { context: request.context, slots: request.slots, kv_type: request.kv_type }
}

fn load(
    runner: Arc<Runner>,
    memory: Allowance,
    passing: Result<UnixStream, Error>,
    weights: Weights,
    plan: LoadPlan,
) -> Work {
    async move {
        let LoadPlan { mut request, blobs: source, reserved, .. } = plan;
        let link = match reserved {
            Some(reserved) => weights.link(&request.blobs, &source, reserved).await,
            None => None,
        };
        request.is_held = link.is_some();
        let status = runner.wait_until_it_serves().await?;
        memory.set(&status, |private| private.limit(cache_of(&request)));
        let blobs = Blobs::new(source, &request.blobs);
        let (passed, loaded) = (pass(passing?, link, blobs), runner.load(&request));
        tokio::pin!(passed, loaded);
        // The runner waits for its files, so a file that cannot be passed fails the load and ends
        // the runner.
        let reply = tokio::select! {
            biased;
            reply = &mut loaded => reply,
            passed = &mut passed => {
                passed?;
                loaded.await
            }
        };
        reply.map(Done::Loaded)
    }
    .boxed()
}

fn rebuild(runner: Arc<Runner>, memory: Allowance, from: ContextRequest, to: ContextRequest) -> Work {
    async move {
        let status = runner.wait_until_it_serves().await?;
        memory.set(&status, |private| private.limit_of_change(from, to));
        let reply = runner.rebuild(&to).await?;
        memory.set(&status, |private| private.limit(to));
        Ok(Done::Rebuilt(reply))
    }
    .boxed()
}

fn failure(error: Error) -> RunnerFailure {
    match error {
        Error::Refused { kind: FailureKind::OutOfMemory, message } => RunnerFailure::OutOfMemory(message),
        Error::Refused { .. } => RunnerFailure::Refused(error),
        other => RunnerFailure::Broken(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_memory_is_told_from_other_refusals() {
        for kind in [FailureKind::BadRequest, FailureKind::Unsupported, FailureKind::OutOfMemory, FailureKind::Internal]
        {
            let error = Error::Refused { kind, message: "cannot allocate memory".to_owned() };
            let expect = kind == FailureKind::OutOfMemory;
            assert_eq!(matches!(failure(error), RunnerFailure::OutOfMemory(_)), expect, "{kind:?}");
        }
        assert!(matches!(failure(Error::Protocol("x".to_owned())), RunnerFailure::Broken(_)));
    }
}
