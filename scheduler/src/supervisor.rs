//! The life of one runner: it is started, loads, serves, and ends; everything is reported.
//!
//! Whatever happens, the last report is [`Report::Ended`], and the process is reaped by then.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use protocol::{ContextRequest, FailureKind, LoadReply};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::files::{self, LoadPlan};
use crate::machine::{End, Failure};
use crate::process::Process;
use crate::{Error, Runner, RunnerOptions};

/// How long the end of a process may come after the end of its answers.
const LAST_MOMENTS: Duration = Duration::from_millis(200);

/// What a runner is told. It also ends when nobody can tell it anything any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Make a KV cache of so many tokens a sequence.
    Rebuild { context: u64 },
    /// End at once.
    Kill,
}

/// What has become of it.
#[derive(Debug)]
pub(crate) enum Report {
    Loaded(Arc<Runner>, LoadReply),
    Rebuilt(LoadReply),
    /// A load or a new KV cache failed; the process is still there.
    Failed(Failure),
    Ended(End),
}

/// What a runner does at the moment, besides serving requests.
type Work = BoxFuture<'static, Result<Done, Error>>;

enum Done {
    Loaded(LoadReply),
    Rebuilt(LoadReply),
}

/// Lives the life of a runner.
pub(crate) async fn supervise(
    options: RunnerOptions,
    plan: LoadPlan,
    commands: UnboundedReceiver<Command>,
    report: impl Fn(Report) + Send,
) {
    let end = match Process::start(&options) {
        Ok((process, runner)) => live(process, Arc::new(runner), plan, commands, &report).await,
        Err(error) => {
            report(Report::Failed(Failure::Broken(error)));
            End::Other("it was not started".to_owned())
        }
    };
    report(Report::Ended(end));
}

async fn live(
    mut process: Process,
    runner: Arc<Runner>,
    plan: LoadPlan,
    mut commands: UnboundedReceiver<Command>,
    report: &(impl Fn(Report) + Send),
) -> End {
    let LoadPlan { request, .. } = &plan;
    let mut cache = ContextRequest { context: request.context, slots: request.slots, kv_type: request.kv_type };
    let mut work = load(runner.clone(), process.files(), plan);
    loop {
        let result = tokio::select! {
            end = process.wait() => return end,
            command = commands.recv() => match command {
                Some(Command::Rebuild { context }) => {
                    cache.context = context;
                    work = rebuild(runner.clone(), cache);
                    continue;
                }
                Some(Command::Kill) | None => return process.kill().await,
            },
            result = &mut work => result,
        };
        work = pending().boxed();
        match result {
            Ok(Done::Loaded(reply)) => report(Report::Loaded(runner.clone(), reply)),
            Ok(Done::Rebuilt(reply)) => report(Report::Rebuilt(reply)),
            Err(error) => {
                // How it ended says more than that it does not answer.
                if let Some(end) = process.wait_for(LAST_MOMENTS).await {
                    return end;
                }
                report(Report::Failed(failure(error)));
            }
        }
    }
}

fn load(runner: Arc<Runner>, passing: Result<UnixStream, Error>, plan: LoadPlan) -> Work {
    async move {
        let LoadPlan { request, files } = plan;
        runner.wait_until_it_listens().await?;
        let (passed, loaded) = (files::pass(passing?, files), runner.load(&request));
        tokio::pin!(passed, loaded);
        // The runner waits for files: one that cannot be passed ends the load, and with it the runner.
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

fn rebuild(runner: Arc<Runner>, cache: ContextRequest) -> Work {
    async move { runner.rebuild(&cache).await.map(Done::Rebuilt) }.boxed()
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Refused { kind: FailureKind::OutOfMemory, message } => Failure::OutOfMemory(message),
        Error::Refused { .. } => Failure::Refused(error),
        other => Failure::Broken(other),
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
            assert_eq!(matches!(failure(error), Failure::OutOfMemory(_)), expect, "{kind:?}");
        }
        assert!(matches!(failure(Error::Protocol("x".to_owned())), Failure::Broken(_)));
    }
}
