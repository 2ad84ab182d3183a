//! The events that the machine receives, and the actions that it returns.

use std::time::Duration;

use content::Digest;
use protocol::DeviceChoice;

use crate::Error;

/// Time since the scheduler was created. The machine has no clock.
pub(crate) type Moment = Duration;

/// A request for a model, from its arrival to its end. An id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// A runner process, or one that is about to start. An id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunnerId(pub(crate) u64);

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// For this long; zero unloads it at once.
    For(Duration),
    /// Until it is stopped or evicted.
    Forever,
}

/// The keep-alive of a model after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAliveChoice {
    /// The keep-alive in the request. It holds until another request sets a different one.
    pub asked: Option<KeepAlive>,
    /// The keep-alive of a model whose loading request sets none.
    pub default: KeepAlive,
}

/// The context that a request needs, in tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The request sets the context. A model that is loaded with another one gets a new KV cache.
    Exactly(u64),
    /// The request sets no context. It shares a loaded model with at least this many tokens.
    AtLeast(u64),
}

impl Context {
    /// Returns the number of tokens that a model is loaded with for this request.
    pub fn tokens(self) -> u64 {
        match self {
            Self::Exactly(tokens) | Self::AtLeast(tokens) => tokens,
        }
    }

    /// Whether a model that is loaded with this many tokens is suitable.
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
    /// It may be unloaded when it is idle.
    #[default]
    Evictable,
    /// It may not be unloaded, and it does not expire.
    Pinned,
}

/// A request for a model.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: RequestId,
    /// Digest of the manifest.
    pub(crate) model: Digest,
    /// Name of the model, for messages.
    pub(crate) name: String,
    pub(crate) context: Context,
    /// Bytes that the model needs with a context of [`Context::tokens`].
    pub(crate) need: u64,
    pub(crate) keep_alive: KeepAliveChoice,
    pub(crate) residence: Residence,
    pub(crate) choice: DeviceChoice,
    /// Whether the request takes no slot.
    pub(crate) is_aside: bool,
}

/// The state of the runner when a request left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The runner worked to the end, whether or not the client stayed.
    Well,
    /// The runner failed during the request.
    Failed,
}

/// Why a live runner could not carry out a command.
#[derive(Clone, Debug)]
pub(crate) enum RunnerFailure {
    /// There was not enough memory.
    OutOfMemory(String),
    /// The runner refuses this model permanently.
    Refused(Error),
    /// Any other failure; a later attempt may succeed.
    Broken(Error),
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In a way that indicates a lack of memory: it was killed, or aborted on a failed allocation.
    Killed(String),
    /// In any other way.
    Other(String),
}

impl End {
    /// Returns the description for messages.
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
    /// After the requests that use it or wait for it.
    WhenIdle,
}

/// An event for the machine.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A request arrived.
    Ask(Ask),
    /// A request left at any stage: it was answered, it failed, or its client disconnected.
    Leave { request: RequestId, outcome: Outcome },
    /// The load plan that [`Action::Plan`] requested is ready.
    Planned { runner: RunnerId },
    /// The load was planned, but devices have no room for it beside other models.
    Crowded { runner: RunnerId },
    /// A runner has loaded its model and serves `slots` requests at a time. `on_devices` states
    /// whether a part of the model is on a device.
    Loaded { runner: RunnerId, slots: usize, on_devices: bool },
    /// A runner has built its new KV cache.
    Rebuilt { runner: RunnerId, slots: usize },
    /// A runner could not load its model or build the KV cache. The process is still alive.
    Failed { runner: RunnerId, failure: RunnerFailure },
    /// A runner's process is gone and reaped. Occurs exactly once for each [`Action::Start`].
    Ended { runner: RunnerId, end: End },
    /// A client requests that a model be unloaded.
    Stop { model: Digest, when: Stop },
    /// The daemon is shutting down; no model can be loaded from now on.
    StopAll,
    /// Time has passed.
    Tick,
}

/// Why a runner is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its keep-alive has passed without a request.
    Expired,
    /// Another model needs the room.
    Evicted,
    /// A client stopped it.
    Stopped,
    /// It could not load its model or build a new KV cache.
    Failed,
    /// It exceeded the timeout.
    Late,
    /// A request needs another placement of its layers.
    Moved,
}

/// An action for the scheduler to carry out, in the order of the list.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Get the load plan from this request. [`Event::Planned`] follows, or [`Event::Crowded`] if
    /// this is not the last attempt, or the request leaves.
    Plan { request: RequestId, runner: RunnerId, attempt: Attempt },
    /// Start a process and load the planned model.
    Start { runner: RunnerId },
    /// Build a KV cache with this many tokens per sequence.
    Rebuild { runner: RunnerId, context: u64 },
    /// Kill the process.
    Kill { runner: RunnerId, why: Why },
    /// Let the request use the runner until it leaves.
    Grant { request: RequestId, runner: RunnerId },
    /// Send an error to the request.
    Refuse { request: RequestId, error: Error },
}

/// Whether a load may still have other models unloaded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The first attempt: if devices have no room for the whole model, other models are unloaded
    /// and the load is planned again.
    Beside,
    /// The last attempt: the plan uses the room that is available.
    Last,
}
