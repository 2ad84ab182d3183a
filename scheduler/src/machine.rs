//! The scheduler as a pure state machine: it receives events and returns actions. It has no clock,
//! no I/O and no tasks.
//!
//! ```text
//! Ask ──▶ queue ──▶ Grant ──▶ Leave          a request; Refuse or Leave may end it at any time
//!           │
//!           └──▶ Plan ─▶ Planned ─▶ Start ─▶ Loaded … Kill ─▶ Ended      its model
//! ```
//!
//! # Invariants
//! - A request is granted once, or refused once, or leaves. It is never forgotten.
//! - A model has at most one place, from its first plan until its process is gone, so it is never
//!   loaded twice.
//! - There are never more places than [`Limits::most`], and their total need never exceeds
//!   [`Limits::memory`].
//! - While a request waits, an operation that will end is in progress (a plan, a load, a process,
//!   or a request that uses a model), or [`Machine::wake`] returns a moment.
//! - A pinned model is unloaded only if it is stopped explicitly, its runner fails, or a request
//!   needs another placement of its layers.

mod back_off;
mod event;
mod failure;
mod place;
mod room;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use content::Digest;

pub(crate) use event::{Action, Ask, End, Event, Moment, Outcome, RequestId, RunnerFailure, RunnerId, Stop, Why};
pub use event::{Attempt, Context, KeepAlive, KeepAliveChoice, Residence};

use self::back_off::BackOff;
use self::place::{Phase, Ready, Residency};
use crate::Error;

/// The limits of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximal number of loaded models, at least one.
    pub most: usize,
    /// Maximal number of bytes that they need together; `None` means no limit.
    pub memory: Option<u64>,
    /// Maximal number of waiting requests, at least one.
    pub queue: usize,
    /// Timeout of a load or of a new KV cache.
    pub load_timeout: Duration,
    /// How long a model in use may stay while other requests wait for its place.
    pub turn: Duration,
}

/// Counters of past events, and the current load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that are waiting.
    pub waiting: usize,
    /// Requests that use a runner.
    pub active: usize,
    /// Models that are loaded.
    pub loaded: usize,
    /// Loads that were started.
    pub loads: u64,
    /// New KV caches that were started.
    pub rebuilds: u64,
    /// Models that were unloaded to make room.
    pub evictions: u64,
    /// Runners that ended by themselves.
    pub crashes: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// The loaded models and the queue of waiting requests.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    limits: Limits,
    now: Moment,
    /// The oldest request is first.
    queue: VecDeque<Ask>,
    /// By model.
    places: BTreeMap<Digest, Residency>,
    /// Models whose runners have failed since the last successful request.
    back_offs: BTreeMap<Digest, BackOff>,
    /// Models that ran out of memory and are being planned or loaded a second time.
    retried: BTreeSet<Digest>,
    /// Number of runners so far.
    runners: u64,
    stopped: bool,
    counts: Counts,
    /// Actions that the current step has decided on.
    actions: Vec<Action>,
}

/// A loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadedPlace {
    /// Digest of the manifest.
    pub(crate) model: Digest,
    pub(crate) name: String,
    pub(crate) runner: RunnerId,
    /// Time until it expires if it is not used; `None` means never.
    pub(crate) remaining: Option<Duration>,
    /// Number of requests that use it.
    pub(crate) active: usize,
    /// Number of requests that wait for it.
    pub(crate) waiting: usize,
}

impl Machine {
    /// Creates a machine without models and requests.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits: Limits { most: limits.most.max(1), queue: limits.queue.max(1), ..limits },
            now: Moment::ZERO,
            queue: VecDeque::new(),
            places: BTreeMap::new(),
            back_offs: BTreeMap::new(),
            retried: BTreeSet::new(),
            runners: 0,
            stopped: false,
            counts: Counts::default(),
            actions: Vec::new(),
        }
    }

    /// Processes one event and returns the resulting actions in order. `now` never goes back.
    pub(crate) fn step(&mut self, now: Moment, event: Event) -> Vec<Action> {
        self.now = self.now.max(now);
        match event {
            Event::Ask(ask) => self.ask(ask),
            Event::Leave { request, outcome } => self.leave(request, outcome),
            Event::Planned { runner } => self.planned(runner),
            Event::Crowded { runner } => self.crowded(runner),
            Event::Loaded { runner, slots, on_devices } => self.ready(runner, slots, Some(on_devices)),
            Event::Rebuilt { runner, slots } => self.ready(runner, slots, None),
            Event::Failed { runner, failure } => self.failed(runner, failure),
            Event::Ended { runner, end } => self.ended(runner, &end),
            Event::Stop { model, when } => self.stop(model, when),
            Event::StopAll => self.stop_all(),
            Event::Tick => {}
        }
        self.end_the_late();
        self.serve();
        self.expire();
        let queue = &self.queue;
        self.retried.retain(|model| queue.iter().any(|ask| ask.model == *model));
        std::mem::take(&mut self.actions)
    }

    /// Returns the next moment at which [`Event::Tick`] may have an effect.
    pub(crate) fn wake(&self) -> Option<Moment> {
        let places = self.places.values().flat_map(|place| match &place.phase {
            Phase::Loading { deadline } | Phase::Rebuilding { deadline, .. } => [*deadline, None],
            Phase::Ready(ready) => {
                let turn = (!ready.users.is_empty() && !self.queue.is_empty())
                    .then(|| ready.since.saturating_add(self.limits.turn));
                [turn, place.expires()]
            }
            Phase::Planning { .. } | Phase::Stopping => [None, None],
        });
        let pauses = self.queue.iter().map(|ask| self.back_offs.get(&ask.model).map(|back_off| back_off.until));
        // Earlier moments have been handled already, or depend on another event.
        places.chain(pauses).flatten().filter(|moment| *moment > self.now).min()
    }

    /// Whether a model is loaded or being loaded, and was not ordered to end.
    pub(crate) fn has(&self, model: Digest) -> bool {
        self.places
            .get(&model)
            .is_some_and(|place| !place.is_stopping() && !matches!(place.phase, Phase::Planning { .. }))
    }

    /// Returns the loaded models.
    pub(crate) fn loaded(&self, now: Moment) -> Vec<LoadedPlace> {
        let ready = |place: &Residency| matches!(place.phase, Phase::Ready(_) | Phase::Rebuilding { .. });
        let describe = |(model, place): (&Digest, &Residency)| LoadedPlace {
            model: *model,
            name: place.name.clone(),
            runner: place.runner,
            active: place.active(),
            waiting: self.queue.iter().filter(|ask| ask.model == *model).count(),
            remaining: match (place.residence, place.keep_alive) {
                (Residence::Evictable, KeepAlive::For(time)) => {
                    Some(place.expires().map_or(time, |moment| moment.saturating_sub(now)))
                }
                _ => None,
            },
        };
        self.places.iter().filter(|(_, place)| ready(place)).map(describe).collect()
    }

    /// Returns the counters.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            waiting: self.queue.len(),
            active: self.places.values().map(Residency::active).sum(),
            loaded: self.loaded(self.now).len(),
            ..self.counts
        }
    }

    fn ask(&mut self, ask: Ask) {
        if self.stopped {
            return self.refuse(ask.request, Error::Stopped);
        }
        if self.queue.len() >= self.limits.queue {
            return self.refuse(ask.request, Error::Busy);
        }
        if let Some(limit) = self.limits.memory.filter(|limit| ask.need > *limit) {
            return self.refuse(ask.request, Error::TooLarge { need: ask.need, limit });
        }
        if let Some(error) = self.failed_a_moment_ago(ask.model) {
            return self.refuse(ask.request, error);
        }
        self.queue.push_back(ask);
    }

    /// Returns the back-off error if loads of the model keep failing and the pause is not over.
    fn failed_a_moment_ago(&self, model: Digest) -> Option<Error> {
        let back_off = self.back_offs.get(&model).filter(|back_off| back_off.until > self.now)?;
        let reason = back_off.load.clone()?;
        let seconds = back_off.until.saturating_sub(self.now).as_millis().div_ceil(1000);
        Some(Error::BackOff {
            reason,
            failures: back_off.failures(),
            seconds: u64::try_from(seconds).unwrap_or(u64::MAX),
        })
    }

    fn leave(&mut self, request: RequestId, outcome: Outcome) {
        if let Some(index) = self.queue.iter().position(|ask| ask.request == request) {
            let Some(ask) = self.queue.remove(index) else { return };
            let plans = |place: &Residency| matches!(place.phase, Phase::Planning { request: own } if own == request);
            // The next request that waits for the model makes the plan.
            if self.places.get(&ask.model).is_some_and(plans) {
                self.places.remove(&ask.model);
            }
            return;
        }
        for (model, place) in &mut self.places {
            let Phase::Ready(ready) = &mut place.phase else { continue };
            if ready.users.remove(&request) {
                ready.aside.remove(&request);
                ready.idle_since = self.now;
                if outcome == Outcome::Well {
                    self.back_offs.remove(model);
                }
                return;
            }
        }
    }

    fn planned(&mut self, runner: RunnerId) {
        let deadline = self.now.checked_add(self.limits.load_timeout);
        let Some((_, place)) = self.places.iter_mut().find(|(_, place)| place.runner == runner) else { return };
        if matches!(place.phase, Phase::Planning { .. }) {
            place.phase = Phase::Loading { deadline };
            self.counts.loads += 1;
            self.actions.push(Action::Start { runner });
        }
    }

    /// Evicts idle models that use devices, and plans the load a second time with the room that is
    /// then available.
    fn crowded(&mut self, runner: RunnerId) {
        let Some(model) = self.model_of(runner) else { return };
        if matches!(self.places[&model].phase, Phase::Planning { .. }) {
            self.places.remove(&model);
            self.retried.insert(model);
            self.evict_idle(model, |place| place.on_devices);
        }
    }

    fn ready(&mut self, runner: RunnerId, slots: usize, on_devices: Option<bool>) {
        let now = self.now;
        let Some((model, place)) = self.places.iter_mut().find(|(_, place)| place.runner == runner) else { return };
        let since = match &place.phase {
            Phase::Loading { .. } => now,
            Phase::Rebuilding { since, .. } => *since,
            // The runner was ordered to end meanwhile.
            _ => return,
        };
        self.retried.remove(model);
        place.on_devices = on_devices.unwrap_or(place.on_devices);
        place.phase = Phase::Ready(Ready {
            since,
            slots: slots.max(1),
            users: BTreeSet::new(),
            aside: BTreeSet::new(),
            idle_since: now,
        });
    }

    fn stop(&mut self, model: Digest, when: Stop) {
        match when {
            Stop::Now => {
                self.refuse_all(model, &Error::Stopped);
                self.kill(model, Why::Stopped);
            }
            Stop::WhenIdle => {
                if let Some(place) = self.places.get_mut(&model) {
                    (place.keep_alive, place.residence) = (KeepAlive::For(Duration::ZERO), Residence::Evictable);
                }
            }
        }
    }

    fn stop_all(&mut self) {
        self.stopped = true;
        for ask in std::mem::take(&mut self.queue) {
            self.refuse(ask.request, Error::Stopped);
        }
        for model in self.places.keys().copied().collect::<Vec<_>>() {
            self.kill(model, Why::Stopped);
        }
    }

    /// Kills a model's process, unless there is none or it was killed already.
    fn kill(&mut self, model: Digest, why: Why) {
        let Some(place) = self.places.get_mut(&model) else { return };
        match place.phase {
            Phase::Stopping => {}
            Phase::Planning { .. } => {
                self.places.remove(&model);
            }
            Phase::Loading { .. } | Phase::Ready(_) | Phase::Rebuilding { .. } => {
                place.phase = Phase::Stopping;
                self.counts.evictions += u64::from(why == Why::Evicted);
                self.actions.push(Action::Kill { runner: place.runner, why });
            }
        }
    }

    fn refuse(&mut self, request: RequestId, error: Error) {
        self.counts.refused += 1;
        self.actions.push(Action::Refuse { request, error });
    }

    fn refuse_all(&mut self, model: Digest, error: &Error) {
        let (refused, kept): (VecDeque<Ask>, _) =
            std::mem::take(&mut self.queue).into_iter().partition(|ask| ask.model == model);
        self.queue = kept;
        for ask in refused {
            self.refuse(ask.request, error.clone());
        }
    }

    fn model_of(&self, runner: RunnerId) -> Option<Digest> {
        self.places.iter().find(|(_, place)| place.runner == runner).map(|(model, _)| *model)
    }

    fn is_wanted(&self, model: Digest) -> bool {
        self.queue.iter().any(|ask| ask.model == model)
    }

    fn is_backing_off(&self, model: Digest) -> bool {
        self.back_offs.get(&model).is_some_and(|back_off| back_off.until > self.now)
    }

    fn is_any_stopping(&self) -> bool {
        self.places.values().any(Residency::is_stopping)
    }
}
