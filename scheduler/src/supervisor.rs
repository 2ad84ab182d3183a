//! The life of one runner: it is started, loads, serves, and ends; everything is reported.
//!
//! Whatever happens, the last report is [`Report::Ended`], and the process is reaped by then.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use protocol::{ContextRequest, LoadReply, LoadRequest};
use tokio::sync::mpsc::UnboundedReceiver;

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
    plan: LoadRequest,
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
    plan: LoadRequest,
    mut commands: UnboundedReceiver<Command>,
    report: &(impl Fn(Report) + Send),
) -> End {
    let mut cache = ContextRequest { context: plan.context, slots: plan.slots, kv_type: plan.kv_type };
    let mut work = load(runner.clone(), plan);
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

fn load(runner: Arc<Runner>, plan: LoadRequest) -> Work {
    async move {
        runner.wait_until_it_listens().await?;
        runner.load(&plan).await.map(Done::Loaded)
    }
    .boxed()
}

fn rebuild(runner: Arc<Runner>, cache: ContextRequest) -> Work {
    async move { runner.rebuild(&cache).await.map(Done::Rebuilt) }.boxed()
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Refused { message, .. } if is_out_of_memory(&message) => Failure::OutOfMemory(message),
        Error::Refused { .. } => Failure::Refused(error),
        other => Failure::Broken(other),
    }
}

/// Whether this is what systems and GPU drivers say where there is not enough memory: ENOMEM, and
/// `CUDA_ERROR_OUT_OF_MEMORY` by name or in words.
fn is_out_of_memory(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["cannot allocate memory", "out of memory", "out_of_memory"].iter().any(|text| message.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_memory_is_told_from_other_refusals() {
        for (message, expect) in [
            ("cannot map `x`: Cannot allocate memory (os error 12)", true),
            ("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", true),
            ("the architecture `x` is not known", false),
        ] {
            let error = Error::Refused { bad_request: false, message: message.to_owned() };
            assert_eq!(matches!(failure(error), Failure::OutOfMemory(_)), expect, "{message}");
        }
        assert!(matches!(failure(Error::Protocol("x".to_owned())), Failure::Broken(_)));
    }
}
