//! The scheduler's record of a runner: the commands to its supervisor, and what it has loaded.

use std::sync::Arc;
use std::time::Instant;

use protocol::LoadReply;
use tokio::sync::mpsc::UnboundedSender;

use crate::Runner;
use crate::machine::{Event, RunnerId};
use crate::supervisor::{Command, Report};

/// A runner with its supervisor, as the scheduler sees them.
#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) name: String,
    pub(crate) commands: UnboundedSender<Command>,
    pub(crate) begin: Instant,
    /// Whether it was ordered to end.
    pub(crate) killed: bool,
    pub(crate) loaded: Option<(Arc<Runner>, Arc<LoadReply>)>,
}

impl Supervised {
    /// Records a report, logs it, and returns it as an event for the machine.
    pub(crate) fn event(&mut self, runner: RunnerId, report: Report) -> Event {
        let model = self.name.as_str();
        match report {
            Report::Loaded(client, reply) => {
                let (pid, elapsed) = (client.pid(), self.begin.elapsed());
                tracing::info!(model, pid, context = reply.context, device = reply.device, ?elapsed, "loaded");
                metrics::histogram!("lode_load_seconds").record(elapsed);
                let (slots, on_devices) = (slots(&reply), reply.on_devices > 0);
                self.loaded = Some((client, Arc::new(reply)));
                Event::Loaded { runner, slots, on_devices }
            }
            Report::Rebuilt(reply) => {
                tracing::info!(model, context = reply.context, "made another KV cache");
                let slots = slots(&reply);
                self.loaded = self.loaded.take().map(|(client, _)| (client, Arc::new(reply)));
                Event::Rebuilt { runner, slots }
            }
            Report::Failed(failure) => {
                tracing::warn!(model, ?failure, "the runner failed");
                Event::Failed { runner, failure }
            }
            Report::Ended(end) => {
                if self.killed {
                    tracing::debug!(model, end = end.describe(), "the runner is gone");
                } else {
                    tracing::warn!(model, end = end.describe(), "the runner ended by itself");
                }
                Event::Ended { runner, end }
            }
        }
    }
}

fn slots(reply: &LoadReply) -> usize {
    usize::try_from(reply.slots).unwrap_or(usize::MAX)
}
