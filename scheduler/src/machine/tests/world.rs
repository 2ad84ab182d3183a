//! A simulated world around the machine: processes that load and end on command, requests with a
//! fate, and checks of the invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use content::Digest;
use protocol::DeviceChoice;

use crate::machine::{
    Action, Ask, Context, End, Event, KeepAlive, KeepAliveChoice, Limits, Machine, Moment, Outcome, RequestId,
    Residence, RunnerFailure, RunnerId, Stop, Why,
};
use crate::{Attempt, Error};

/// The state of a request.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Waiting,
    Granted(RunnerId),
    /// It was granted and left.
    Done,
    Refused(Error),
    /// It left before it was granted.
    Cancelled,
}

/// A simulated process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Name of its model.
    pub(super) model: String,
    /// Bytes, including the current or coming KV cache.
    need: u64,
    context: u64,
    choice: DeviceChoice,
    /// The attempt of its plan.
    attempt: Attempt,
    /// Whether its plan was made.
    started: bool,
    pub(super) ready: bool,
    pub(super) killed: Option<Why>,
    /// Whether a request that it serves, or was loaded for, has pinned it.
    pinned: bool,
    users: BTreeSet<RequestId>,
}

/// An operation that completes by itself sooner or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Plan(RequestId, RunnerId),
    Load(RunnerId),
    Rebuild(RunnerId),
    End(RunnerId),
}

/// The outcome of a pending operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Well,
    OutOfMemory,
    Refused,
    Crash,
    Kill,
}

/// Number of slots of every runner.
pub(super) const SLOTS: usize = 2;

pub(super) struct World {
    machine: Machine,
    limits: Limits,
    pub(super) now: Moment,
    pub(super) fates: BTreeMap<RequestId, Fate>,
    asks: BTreeMap<RequestId, Ask>,
    pub(super) processes: BTreeMap<RunnerId, Process>,
    pub(super) pending: Vec<Pending>,
    /// All actions so far, for assertion messages.
    pub(super) actions: Vec<Action>,
    /// Models that were stopped explicitly, so that a pinned one may be unloaded.
    stopped: BTreeSet<String>,
}

/// Returns a digest for the model with this name. Digests have the order of the names, because the
/// machine chooses by digest between models that were idle for the same time.
fn digest(name: &str) -> Digest {
    let hex = name.bytes().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    format!("sha256:{hex:0<64}").parse().expect("a digest")
}

/// A request for the model `model`, which needs 10 bytes plus one byte per 100 tokens.
pub(super) fn ask(request: u64, model: &str, context: Context) -> Ask {
    Ask {
        request: RequestId(request),
        model: digest(model),
        name: model.to_owned(),
        context,
        need: 10 + context.tokens() / 100,
        keep_alive: KeepAliveChoice { asked: None, default: KeepAlive::For(Duration::from_mins(5)) },
        residence: Residence::Evictable,
        choice: DeviceChoice::default(),
        is_aside: false,
    }
}

pub(super) fn limits(most: usize) -> Limits {
    Limits { most, memory: None, queue: 64, load_timeout: Duration::from_mins(1), turn: Duration::from_secs(2) }
}

impl World {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            machine: Machine::new(limits),
            limits,
            now: Moment::ZERO,
            fates: BTreeMap::new(),
            asks: BTreeMap::new(),
            processes: BTreeMap::new(),
            pending: Vec::new(),
            actions: Vec::new(),
            stopped: BTreeSet::new(),
        }
    }

    pub(super) fn ask(&mut self, ask: Ask) {
        self.fates.insert(ask.request, Fate::Waiting);
        self.asks.insert(ask.request, ask.clone());
        self.tell(Event::Ask(ask));
    }

    /// Makes a request leave, in any state.
    pub(super) fn leave(&mut self, request: RequestId, outcome: Outcome) {
        let fate = self.fates.get_mut(&request).expect("it was asked");
        match fate.clone() {
            Fate::Waiting => {
                *fate = Fate::Cancelled;
                self.pending.retain(|pending| !matches!(pending, Pending::Plan(own, _) if *own == request));
            }
            Fate::Granted(runner) => {
                *fate = Fate::Done;
                if let Some(process) = self.processes.get_mut(&runner) {
                    process.users.remove(&request);
                }
            }
            Fate::Done | Fate::Refused(_) | Fate::Cancelled => {}
        }
        self.tell(Event::Leave { request, outcome });
    }

    pub(super) fn stop(&mut self, model: &str, when: Stop) {
        self.stopped.insert(model.to_owned());
        self.tell(Event::Stop { model: digest(model), when });
    }

    pub(super) fn stop_all(&mut self) {
        self.stopped.extend(self.asks.values().map(|ask| ask.name.clone()));
        self.tell(Event::StopAll);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.tell(Event::Tick);
    }

    /// Makes a process end by itself.
    pub(super) fn crash(&mut self, runner: RunnerId, end: End) {
        self.processes.remove(&runner);
        self.pending.retain(|pending| {
            !matches!(pending, Pending::Load(own) | Pending::Rebuild(own) | Pending::End(own) if *own == runner)
        });
        self.tell(Event::Ended { runner, end });
    }

    /// Completes a pending operation.
    pub(super) fn happen(&mut self, index: usize, turn: Turn) {
        let pending = self.pending.remove(index);
        let text = || "boom".to_owned();
        match (pending, turn) {
            // If a plan fails, its request leaves.
            (Pending::Plan(request, _), Turn::Refused | Turn::Crash) => self.leave(request, Outcome::Failed),
            // The last attempt uses the room that there is.
            (Pending::Plan(_, runner), Turn::OutOfMemory) if self.processes[&runner].attempt == Attempt::Beside => {
                self.tell(Event::Crowded { runner });
            }
            (Pending::Plan(_, runner), _) => self.tell(Event::Planned { runner }),
            (Pending::Load(runner) | Pending::Rebuild(runner), Turn::Crash) => {
                self.crash(runner, End::Other(text()));
            }
            (Pending::Load(runner) | Pending::Rebuild(runner), Turn::Kill) | (Pending::End(runner), _) => {
                self.crash(runner, End::Killed(text()));
            }
            (Pending::Load(runner) | Pending::Rebuild(runner), Turn::OutOfMemory) => {
                self.tell(Event::Failed { runner, failure: RunnerFailure::OutOfMemory(text()) });
            }
            (Pending::Load(runner) | Pending::Rebuild(runner), Turn::Refused) => {
                let error = Error::Refused { kind: protocol::FailureKind::Internal, message: text() };
                self.tell(Event::Failed { runner, failure: RunnerFailure::Refused(error) });
            }
            (Pending::Load(runner), Turn::Well) => {
                self.processes.get_mut(&runner).expect("it loads").ready = true;
                let on_devices = self.processes[&runner].model != "on-the-cpu";
                self.tell(Event::Loaded { runner, slots: SLOTS, on_devices });
            }
            (Pending::Rebuild(runner), Turn::Well) => {
                self.processes.get_mut(&runner).expect("it rebuilds").ready = true;
                self.tell(Event::Rebuilt { runner, slots: SLOTS });
            }
        }
    }

    /// Completes all pending operations successfully until none is left.
    pub(super) fn calm(&mut self) {
        while !self.pending.is_empty() {
            self.happen(0, Turn::Well);
        }
    }

    /// Lets all requests leave once they are granted, and lets time pass if nothing else can
    /// happen. Afterwards no request waits.
    pub(super) fn finish(&mut self) {
        for _ in 0..10_000 {
            self.calm();
            if let Some(request) = self.granted().first() {
                self.leave(*request, Outcome::Well);
            } else if self.waiting().is_empty() {
                return;
            } else {
                let wake = self.machine.wake().expect("who waits for nothing waits for a moment");
                self.pass(wake.saturating_sub(self.now));
            }
        }
        panic!("{:?} wait for ever", self.waiting());
    }

    pub(super) fn granted(&self) -> Vec<RequestId> {
        let granted = self.fates.iter().filter(|(_, fate)| matches!(fate, Fate::Granted(_)));
        granted.map(|(request, _)| *request).collect()
    }

    pub(super) fn waiting(&self) -> Vec<RequestId> {
        let waiting = self.fates.iter().filter(|(_, fate)| matches!(fate, Fate::Waiting));
        waiting.map(|(request, _)| *request).collect()
    }

    pub(super) fn fate(&self, request: u64) -> &Fate {
        &self.fates[&RequestId(request)]
    }

    pub(super) fn is_granted(&self, request: u64) -> bool {
        matches!(self.fate(request), Fate::Granted(_))
    }

    /// The models whose processes were not killed.
    pub(super) fn models(&self) -> Vec<&str> {
        let alive = self.processes.values().filter(|process| process.killed.is_none());
        let mut models: Vec<&str> = alive.map(|process| process.model.as_str()).collect();
        models.sort_unstable();
        models
    }

    /// The runner of a model.
    pub(super) fn runner(&self, model: &str) -> RunnerId {
        let own = self.processes.iter().find(|(_, process)| process.model == model && process.killed.is_none());
        *own.expect("it has a process").0
    }

    fn tell(&mut self, event: Event) {
        for action in self.machine.step(self.now, event) {
            self.actions.push(action.clone());
            self.act(action);
        }
        self.check();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Plan { request, runner, attempt } => {
                assert!(matches!(self.fates[&request], Fate::Waiting), "{request:?} plans and does not wait");
                self.forget_unplanned();
                let ask = &self.asks[&request];
                let doubles = self.processes.values().filter(|process| process.model == ask.name).count();
                assert_eq!(doubles, 0, "`{}` is loaded twice", ask.name);
                self.pending.push(Pending::Plan(request, runner));
                // The process starts later, but its place is taken from now on.
                let process = Process {
                    model: ask.name.clone(),
                    need: ask.need,
                    context: ask.context.tokens(),
                    choice: ask.choice,
                    attempt,
                    started: false,
                    ready: false,
                    killed: None,
                    pinned: ask.residence == Residence::Pinned,
                    users: BTreeSet::new(),
                };
                self.processes.insert(runner, process);
            }
            Action::Start { runner } => {
                self.processes.get_mut(&runner).expect("it was planned").started = true;
                self.pending.push(Pending::Load(runner));
            }
            Action::Rebuild { runner, context } => {
                let process = self.processes.get_mut(&runner).expect("a process");
                assert!(process.users.is_empty() && process.ready, "{runner:?} is rebuilt while it is in use");
                (process.ready, process.context, process.need) = (false, context, 10 + context / 100);
                self.pending.push(Pending::Rebuild(runner));
            }
            Action::Kill { runner, why } => self.kill(runner, why),
            Action::Grant { request, runner } => {
                let fate = self.fates.insert(request, Fate::Granted(runner));
                assert!(matches!(fate, Some(Fate::Waiting)), "{request:?} is granted and was {fate:?}");
                let (ask, process) = (&self.asks[&request], self.processes.get_mut(&runner).expect("a process"));
                assert!(process.ready && process.killed.is_none(), "{request:?} gets a runner that is not ready");
                let suits = ask.context.suits(process.context) && ask.choice.is_met_by(process.choice);
                assert!(ask.name == process.model && suits, "{request:?} gets another");
                process.users.insert(request);
                process.pinned |= ask.residence == Residence::Pinned;
                let in_slots = process.users.iter().filter(|user| !self.asks[user].is_aside).count();
                assert!(in_slots <= SLOTS, "{runner:?} has too many users");
                assert!(process.users.len() - in_slots <= SLOTS + 3, "{runner:?} has too many users aside");
            }
            Action::Refuse { request, error } => {
                let fate = self.fates.insert(request, Fate::Refused(error));
                assert!(matches!(fate, Some(Fate::Waiting)), "{request:?} is refused and was {fate:?}");
                self.pending.retain(|pending| !matches!(pending, Pending::Plan(own, _) if *own == request));
            }
        }
    }

    fn kill(&mut self, runner: RunnerId, why: Why) {
        let model = self.processes[&runner].model.clone();
        let gentle = matches!(why, Why::Expired | Why::Evicted);
        let process = self.processes.get_mut(&runner).expect("a process");
        let stays = process.pinned && !self.stopped.contains(&model);
        assert!(!gentle || !stays, "pinned `{model}` is unloaded: {why:?}");
        let in_use = !process.users.is_empty();
        assert!(!(gentle || why == Why::Moved) || !in_use, "`{model}` is unloaded while it is in use");
        assert_eq!(process.killed, None, "{runner:?} is killed twice");
        process.killed = Some(why);
        let own = |pending: &Pending| matches!(pending, Pending::Load(own) | Pending::Rebuild(own) if *own == runner);
        self.pending.retain(|pending| !own(pending));
        self.pending.push(Pending::End(runner));
    }

    /// Removes the process of a plan that was abandoned.
    fn forget_unplanned(&mut self) {
        let pending = &self.pending;
        let planned = |runner| pending.iter().any(|pending| matches!(pending, Pending::Plan(_, own) if *own == runner));
        self.processes.retain(|runner, process| process.started || planned(*runner));
    }

    fn check(&mut self) {
        self.forget_unplanned();
        assert!(self.processes.len() <= self.limits.most, "too many models: {:?}", self.processes);
        let models: BTreeSet<&str> = self.processes.values().map(|process| process.model.as_str()).collect();
        assert_eq!(models.len(), self.processes.len(), "a model is loaded twice: {:?}", self.processes);
        let need: u64 = self.processes.values().map(|process| process.need).sum();
        assert!(self.limits.memory.is_none_or(|limit| need <= limit), "too much memory: {:?}", self.processes);
        let counts = self.machine.counts();
        assert_eq!(counts.waiting, self.waiting().len(), "the queue has forgotten somebody");
        assert!(counts.waiting <= self.limits.queue);
        let users: usize = self.processes.values().filter(|p| p.killed.is_none()).map(|p| p.users.len()).sum();
        assert_eq!(counts.active, users);
        let moves = !self.pending.is_empty() || users > 0 || self.machine.wake().is_some();
        assert!(self.waiting().is_empty() || moves, "{:?} wait and nothing will happen", self.waiting());
    }
}
