//! A loaded model, or one that is being loaded or unloaded.

use std::collections::BTreeSet;

use protocol::DeviceChoice;

use super::event::{KeepAlive, Moment, RequestId, Residence, RunnerId};

/// What one model takes of the limits, from the first plan until its process is gone.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) runner: RunnerId,
    /// The name by which it was loaded, for people.
    pub(super) name: String,
    /// Bytes.
    pub(super) need: u64,
    /// The tokens that were asked for; the runner may have made them fewer.
    pub(super) context: u64,
    pub(super) keep_alive: KeepAlive,
    pub(super) residence: Residence,
    pub(super) choice: DeviceChoice,
    /// Whether some of it is on a device, or may be where nobody has said yet.
    pub(super) on_devices: bool,
    pub(super) phase: Phase,
}

/// ```text
/// Planning ──▶ Loading ──▶ Ready ◀──▶ Rebuilding
///                 └──────────┴────────────┴──────▶ Stopping ──▶ gone
/// ```
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// This request makes the load plan. There is no process.
    Planning { request: RequestId },
    /// A process starts and loads.
    Loading { deadline: Option<Moment> },
    /// Requests are served.
    Ready(Ready),
    /// The runner makes a KV cache; nobody uses it meanwhile.
    Rebuilding { deadline: Option<Moment>, since: Moment },
    /// The process was killed and is not gone yet.
    Stopping,
}

/// Requests that take no slot, at a time, beyond as many as there are slots. It bounds those that wait in the runner.
const MORE_ASIDE: usize = 3;

/// A runner that serves requests.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    /// When it was loaded.
    pub(super) since: Moment,
    /// Requests that it takes at a time.
    pub(super) slots: usize,
    pub(super) users: BTreeSet<RequestId>,
    /// Those of them that take no slot.
    pub(super) aside: BTreeSet<RequestId>,
    /// When the last request left, or the load was done.
    pub(super) idle_since: Moment,
}

impl Ready {
    /// Whether it takes another request.
    pub(super) fn has_room(&self, is_aside: bool) -> bool {
        if is_aside {
            self.aside.len() < self.slots.saturating_add(MORE_ASIDE)
        } else {
            self.users.len() - self.aside.len() < self.slots
        }
    }
}

impl Place {
    /// What it is ready with, where it is and nobody uses it.
    pub(super) fn idle(&self) -> Option<&Ready> {
        match &self.phase {
            Phase::Ready(ready) if ready.users.is_empty() => Some(ready),
            _ => None,
        }
    }

    /// Whether it is going away.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping)
    }

    /// How many requests use it.
    pub(super) fn active(&self) -> usize {
        if let Phase::Ready(ready) = &self.phase { ready.users.len() } else { 0 }
    }

    /// When it expires: where it is idle, not pinned and not kept for ever.
    pub(super) fn expires(&self) -> Option<Moment> {
        match (self.residence, self.keep_alive) {
            (Residence::Evictable, KeepAlive::For(time)) => self.idle()?.idle_since.checked_add(time),
            _ => None,
        }
    }
}
