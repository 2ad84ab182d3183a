//! What the machine is told, and what it wants done.

use std::time::Duration;

use protocol::DeviceChoice;

use crate::{Attempt, Error};

/// Time since the scheduler was made. The machine has no clock of its own.
pub(crate) type Moment = Duration;

/// A request for a model, from its arrival to its end. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// A runner process, or one that is about to be started. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunnerId(pub(crate) u64);

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long; not at all where it is zero.
    For(Duration),
    /// Until it is stopped, or its place is needed.
    Forever,
}

/// How long a model is to be kept after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAliveChoice {
    /// What the request says. It holds until another request says something else.
    pub asked: Option<KeepAlive>,
    /// For a model that is loaded by a request that says nothing.
    pub default: KeepAlive,
}

/// The context that a request wants, in tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The request names it. A model that is loaded with another one gets a new KV cache.
    Exactly(u64),
    /// The request names none. It shares a loaded model that has so many tokens or more.
    AtLeast(u64),
}

impl Context {
    /// The tokens that a model is loaded with for this request.
    pub fn tokens(self) -> u64 {
        match self {
            Self::Exactly(tokens) | Self::AtLeast(tokens) => tokens,
        }
    }

    /// Whether a model that was loaded with so many tokens will do.
    pub(crate) fn suits(self, loaded: u64) -> bool {
        match self {
            Self::Exactly(tokens) => loaded == tokens,
            Self::AtLeast(tokens) => loaded >= tokens,
        }
    }
}

/// Whether a model may be unloaded to make room for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// It may, once it is idle.
    #[default]
    Evictable,
    /// It may not, and it does not expire.
    Pinned,
}

/// A request for a model.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: RequestId,
    /// The manifest's digest.
    pub(crate) model: String,
    /// The model's name, for people.
    pub(crate) name: String,
    pub(crate) context: Context,
    /// Bytes that the model needs with the context of [`Context::tokens`].
    pub(crate) need: u64,
    pub(crate) keep_alive: KeepAliveChoice,
    pub(crate) residence: Residence,
    pub(crate) choice: DeviceChoice,
    /// It takes no slot.
    pub(crate) is_aside: bool,
}

/// How a request left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The runner was well to the end, whether or not the client stayed.
    Well,
    /// The runner failed it.
    Failed,
}

/// Why a runner that is alive could not do what it was told.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// There was not enough memory.
    OutOfMemory(String),
    /// It will not load this model, and would not the next time.
    Refused(Error),
    /// Anything else; it may go better later.
    Broken(Error),
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As it does where the system has no more memory: it was killed, or gave up on an allocation.
    Killed(String),
    /// In any other way.
    Other(String),
}

impl End {
    /// For people.
    pub(crate) fn describe(&self) -> &str {
        match self {
            Self::Killed(text) | Self::Other(text) => text,
        }
    }
}

/// When a model is to be unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At once: requests that use it or wait for it fail.
    Now,
    /// After the requests that use it and wait for it.
    WhenIdle,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A request arrived.
    Ask(Ask),
    /// A request went: answered, failed, or its client gave up, at whatever stage.
    Leave { request: RequestId, outcome: Outcome },
    /// The load plan that [`Action::Plan`] asked for is there.
    Planned { runner: RunnerId },
    /// The load was planned, and devices have no room for it beside other models.
    Crowded { runner: RunnerId },
    /// A runner has loaded its model and takes so many requests at a time; whether some of it is on a device.
    Loaded { runner: RunnerId, slots: usize, on_devices: bool },
    /// A runner has its new KV cache.
    Rebuilt { runner: RunnerId, slots: usize },
    /// A runner could not load its model, or not make the KV cache. It is still there.
    Failed { runner: RunnerId, failure: Failure },
    /// A runner's process is gone and reaped. Comes exactly once for each [`Action::Start`].
    Ended { runner: RunnerId, end: End },
    /// Somebody wants a model unloaded.
    Stop { model: String, when: Stop },
    /// The daemon ends: nothing is loaded from now on.
    StopAll,
    /// Time has passed.
    Tick,
}

/// Why a runner is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Nobody has used it for its keep-alive.
    Expired,
    /// Another model needs the room.
    Evicted,
    /// Somebody stopped it.
    Stopped,
    /// It could not load its model, or not make a new KV cache.
    Failed,
    /// It took too long.
    Late,
    /// Its layers are to be elsewhere.
    Moved,
}

/// What is to be done, in this order.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Ask this request for its load plan; then comes [`Event::Planned`], or [`Event::Crowded`] where this is not the last attempt, or the
    /// request leaves.
    Plan { request: RequestId, runner: RunnerId, attempt: Attempt },
    /// Start a process and load what was planned.
    Start { runner: RunnerId },
    /// Make a KV cache of so many tokens a sequence.
    Rebuild { runner: RunnerId, context: u64 },
    /// Kill the process.
    Kill { runner: RunnerId, why: Why },
    /// Let the request use the runner until it leaves.
    Grant { request: RequestId, runner: RunnerId },
    /// Tell the request that it is not served.
    Refuse { request: RequestId, error: Error },
}
