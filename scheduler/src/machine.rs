//! The scheduler as a pure state machine: it is told what happened and says what to do. No clock, no I/O, no tasks.
//!
//! ```text
//! Ask ──▶ queue ──▶ Grant ──▶ Leave          a request; Refuse or Leave may end it at any time
//!           │
//!           └──▶ Plan ─▶ Planned ─▶ Start ─▶ Loaded … Kill ─▶ Ended      its model
//! ```
//!
//! # Invariants
//! - A request that was asked is granted once, or refused once, or leaves. It is never forgotten.
//! - A model has one place at most, from the first plan until its process is gone; so it is never loaded twice.
//! - Places are never more than [`Limits::most`], what they need never more than [`Limits::memory`].
//! - While a request waits, something is under way that ends (a plan, a load, a process, a user), or
//!   [`Machine::wake`] names a moment.
//! - A pinned model is unloaded only where somebody stops it, its runner fails, or a request wants its layers elsewhere.

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

pub(crate) use event::{Action, Ask, End, Event, Failure, Moment, Outcome, RequestId, RunnerId, Stop, Why};
pub use event::{Context, KeepAlive, KeepAliveChoice, Residence};

use self::back_off::BackOff;
use self::place::{Phase, Place, Ready};
use crate::Error;

/// What the machine keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Models that are loaded at a time, at least one.
    pub most: usize,
    /// Bytes that they may need together; `None` is no limit.
    pub memory: Option<u64>,
    /// Requests that wait at a time, at least one.
    pub queue: usize,
    /// How long a load, or a new KV cache, may take.
    pub load_timeout: Duration,
    /// How long a model that is in use may stay while others wait for its place.
    pub turn: Duration,
}

/// How often things have happened, and how much is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that wait at the moment.
    pub waiting: usize,
    /// Requests that use a runner at the moment.
    pub active: usize,
    /// Models that are loaded at the moment.
    pub loaded: usize,
    /// Loads that were begun.
    pub loads: u64,
    /// New KV caches that were begun.
    pub rebuilds: u64,
    /// Models that were unloaded to make room.
    pub evictions: u64,
    /// Runners that ended by themselves.
    pub crashes: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// Which models are loaded, and who waits for which.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    limits: Limits,
    now: Moment,
    /// The oldest first.
    queue: VecDeque<Ask>,
    /// By model.
    places: BTreeMap<String, Place>,
    /// Models whose runners have failed since the last request that went well.
    back_offs: BTreeMap<String, BackOff>,
    /// Models that had not enough memory and are loaded, or planned, a second time.
    retried: BTreeSet<String>,
    /// Runners there have been.
    runners: u64,
    stopped: bool,
    counts: Counts,
    /// What the step that is going on has decided.
    actions: Vec<Action>,
}

/// A loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadedPlace {
    pub(crate) model: String,
    pub(crate) name: String,
    pub(crate) runner: RunnerId,
    /// How long it will still be there if nobody uses it; `None` is for ever.
    pub(crate) remaining: Option<Duration>,
    /// Requests that use it.
    pub(crate) active: usize,
    /// Requests that wait for it.
    pub(crate) waiting: usize,
}

impl Machine {
    /// Without models and requests.
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

    /// Takes one event; gives what is to be done about it, in order. `now` never goes back.
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
            Event::Stop { model, when } => self.stop(&model, when),
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

    /// The next moment at which [`Event::Tick`] may change something.
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
        // What was due before has been seen to, or waits for another event.
        places.chain(pauses).flatten().filter(|moment| *moment > self.now).min()
    }

    /// Whether a model is loaded or on its way, and was not told to end.
    pub(crate) fn has(&self, model: &str) -> bool {
        self.places
            .get(model)
            .is_some_and(|place| !place.is_stopping() && !matches!(place.phase, Phase::Planning { .. }))
    }

    /// The loaded models.
    pub(crate) fn loaded(&self, now: Moment) -> Vec<LoadedPlace> {
        let ready = |place: &Place| matches!(place.phase, Phase::Ready(_) | Phase::Rebuilding { .. });
        let describe = |(model, place): (&String, &Place)| LoadedPlace {
            model: model.clone(),
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

    /// What was counted.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            waiting: self.queue.len(),
            active: self.places.values().map(Place::active).sum(),
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
        if let Some(error) = self.failed_a_moment_ago(&ask.model) {
            return self.refuse(ask.request, error);
        }
        self.queue.push_back(ask);
    }

    /// Where loads of the model keep failing and it is too early for another.
    fn failed_a_moment_ago(&self, model: &str) -> Option<Error> {
        let back_off = self.back_offs.get(model).filter(|back_off| back_off.until > self.now)?;
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
            let plans = |place: &Place| matches!(place.phase, Phase::Planning { request: own } if own == request);
            // The next that waits for the model makes the plan.
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

    /// Idle models go that are on devices, and who waits plans once more: for what there is then.
    fn crowded(&mut self, runner: RunnerId) {
        let Some(model) = self.model_of(runner) else { return };
        if matches!(self.places[&model].phase, Phase::Planning { .. }) {
            self.places.remove(&model);
            self.retried.insert(model.clone());
            self.evict_idle(&model, |place| place.on_devices);
        }
    }

    fn ready(&mut self, runner: RunnerId, slots: usize, on_devices: Option<bool>) {
        let now = self.now;
        let Some((model, place)) = self.places.iter_mut().find(|(_, place)| place.runner == runner) else { return };
        let since = match &place.phase {
            Phase::Loading { .. } => now,
            Phase::Rebuilding { since, .. } => *since,
            // It was told to end meanwhile.
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

    fn stop(&mut self, model: &str, when: Stop) {
        match when {
            Stop::Now => {
                self.refuse_all(model, &Error::Stopped);
                self.kill(model, Why::Stopped);
            }
            Stop::WhenIdle => {
                if let Some(place) = self.places.get_mut(model) {
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
        for model in self.places.keys().cloned().collect::<Vec<_>>() {
            self.kill(&model, Why::Stopped);
        }
    }

    /// Kills a model's process, where there is one that was not killed before.
    fn kill(&mut self, model: &str, why: Why) {
        let Some(place) = self.places.get_mut(model) else { return };
        match place.phase {
            Phase::Stopping => {}
            Phase::Planning { .. } => {
                self.places.remove(model);
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

    fn refuse_all(&mut self, model: &str, error: &Error) {
        let (refused, kept): (VecDeque<Ask>, _) =
            std::mem::take(&mut self.queue).into_iter().partition(|ask| ask.model == model);
        self.queue = kept;
        for ask in refused {
            self.refuse(ask.request, error.clone());
        }
    }

    fn model_of(&self, runner: RunnerId) -> Option<String> {
        self.places.iter().find(|(_, place)| place.runner == runner).map(|(model, _)| model.clone())
    }

    fn is_wanted(&self, model: &str) -> bool {
        self.queue.iter().any(|ask| ask.model == model)
    }

    fn is_backing_off(&self, model: &str) -> bool {
        self.back_offs.get(model).is_some_and(|back_off| back_off.until > self.now)
    }

    fn is_any_stopping(&self) -> bool {
        self.places.values().any(Place::is_stopping)
    }
}
