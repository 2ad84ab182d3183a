//! The place of a model that is loaded, being loaded, or being unloaded.

use std::collections::BTreeSet;

use protocol::DeviceChoice;

use super::event::{KeepAlive, Moment, RequestId, Residence, RunnerId};

/// A model's share of the limits, from its first plan until its process is gone.
#[derive(Clone, Debug)]
pub(super) struct Residency {
    pub(super) runner: RunnerId,
    /// The name under which it was loaded, for messages.
    pub(super) name: String,
    /// Bytes that the model needs.
    pub(super) need: u64,
    /// The requested number of tokens; the runner may have reduced it.
    pub(super) context: u64,
    pub(super) keep_alive: KeepAlive,
    pub(super) residence: Residence,
    pub(super) choice: DeviceChoice,
    /// Whether a part of the model is on a device; true until the runner has reported it.
    pub(super) on_devices: bool,
    pub(super) phase: Phase,
}

/// ```text
/// Planning ──▶ Loading ──▶ Ready ◀──▶ Rebuilding
///                 └──────────┴────────────┴──────▶ Stopping ──▶ gone
/// ```
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// This request makes the load plan. There is no process yet.
    Planning { request: RequestId },
    /// A process starts and loads the model.
    Loading { deadline: Option<Moment> },
    /// Requests are served.
    Ready(Ready),
    /// The runner builds a KV cache; no request uses it meanwhile.
    Rebuilding { deadline: Option<Moment>, since: Moment },
    /// The process was killed but is not gone yet.
    Stopping,
}

/// How many more requests than slots may run beside the slots. It bounds the requests that wait in
/// the runner.
const MORE_ASIDE: usize = 3;

/// A runner that serves requests.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    /// When it was loaded.
    pub(super) since: Moment,
    /// Number of requests that it serves at a time.
    pub(super) slots: usize,
    pub(super) users: BTreeSet<RequestId>,
    /// The users that take no slot.
    pub(super) aside: BTreeSet<RequestId>,
    /// When the last request left or the load finished.
    pub(super) idle_since: Moment,
}

impl Ready {
    /// Whether the runner can take another request of this kind.
    pub(super) fn has_room(&self, is_aside: bool) -> bool {
        if is_aside {
            self.aside.len() < self.slots.saturating_add(MORE_ASIDE)
        } else {
            self.users.len() - self.aside.len() < self.slots
        }
    }
}

impl Residency {
    /// Returns the ready state if no request uses the model.
    pub(super) fn idle(&self) -> Option<&Ready> {
        match &self.phase {
            Phase::Ready(ready) if ready.users.is_empty() => Some(ready),
            _ => None,
        }
    }

    /// Whether the process was killed.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping)
    }

    /// Returns the number of requests that use the model.
    pub(super) fn active(&self) -> usize {
        if let Phase::Ready(ready) = &self.phase { ready.users.len() } else { 0 }
    }

    /// Returns when the model expires. `None` if it is in use, pinned, or kept forever.
    pub(super) fn expires(&self) -> Option<Moment> {
        match (self.residence, self.keep_alive) {
            (Residence::Evictable, KeepAlive::For(time)) => self.idle()?.idle_since.checked_add(time),
            _ => None,
        }
    }
}
