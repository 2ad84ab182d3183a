//! Carries out what the machine decides: tells those who wait, starts and ends runners, wakes it in time.
//!
//! Everything is behind one lock, which is held for a step and what follows from it; nothing waits under it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime};

use protocol::{DeviceChoice, LoadReply, Survey};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::gpu_driver;
use crate::holder::Holder;
use crate::load_plan::LoadPlan;
use crate::machine::{Action, Ask, Event, Machine, Moment, Outcome, RequestId, RunnerId, Stop, Why};
use crate::supervisor::{Command, Report, supervise};
use crate::sync::{Clock, Mutex, MutexGuard, PoisonError, Tasks, spawn};
use crate::{Context, Counts, Error, KeepAliveChoice, Limits, Residence, Runner, RunnerOptions};

/// Which model, with which context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoadKey {
    /// The manifest's digest.
    pub model: String,
    /// Tokens that a sequence may have.
    pub context: u64,
}

/// The model that a request wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The manifest's digest.
    pub model: String,
    /// The model's name, for people.
    pub name: String,
    /// How long a sequence may be.
    pub context: Context,
    /// Bytes that the model takes of [`Limits::memory`] with that context.
    pub need: u64,
    /// How long it is kept afterwards.
    pub keep_alive: KeepAliveChoice,
    /// Whether it may be unloaded for others.
    pub residence: Residence,
    /// Where its layers are to be.
    pub choice: DeviceChoice,
    /// It needs the model beside conversations: to cut texts into tokens, or for embeddings and rankings. It takes no slot from those.
    pub is_aside: bool,
}

/// Whether a load may yet have others unloaded for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Where devices have no room for all of it beside others, these go first.
    Beside,
    /// It makes do with the room that there is.
    Last,
}

/// Loads, keeps and unloads models. Clones share it.
#[derive(Clone, Debug)]
pub struct Scheduler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: RunnerOptions,
    holder: Arc<Holder>,
    clock: Clock,
    /// When the machine wants to be woken.
    alarm: watch::Sender<Option<Moment>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    /// Requests there have been.
    requests: u64,
    /// Those that have not left.
    requesters: HashMap<RequestId, UnboundedSender<Message>>,
    runners: HashMap<RunnerId, Supervised>,
    /// The supervisors of the runners. One may be begun where a lease is dropped, which may be outside of a runtime.
    tasks: Tasks,
}

#[derive(Debug)]
struct Supervised {
    name: String,
    commands: UnboundedSender<Command>,
    begin: Instant,
    /// It was told to end.
    killed: bool,
    loaded: Option<(Arc<Runner>, Arc<LoadReply>)>,
}

/// What a request that waits is told.
#[derive(Debug)]
enum Message {
    Plan(RunnerId, Attempt),
    Granted(Arc<Runner>, Arc<LoadReply>),
    Refused(Error),
}

/// A request on its way; it leaves when this is dropped.
#[derive(Debug)]
struct Ticket {
    scheduler: Weak<Inner>,
    request: RequestId,
    name: String,
    /// Once it is granted.
    runner: Option<Arc<Runner>>,
}

/// A loaded model, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The name by which it was loaded.
    pub name: String,
    /// Which model, and its context.
    pub key: LoadKey,
    /// What the runner said after the load.
    pub reply: LoadReply,
    /// When it will be unloaded if nobody uses it; `None` for never.
    pub expires: Option<SystemTime>,
    /// The runner's process id.
    pub pid: u32,
    /// Requests that use it.
    pub active: usize,
    /// Requests that wait for it.
    pub waiting: usize,
}

/// The use of a loaded model for one request.
#[derive(Debug)]
#[must_use = "the model is given back when this is dropped"]
pub struct Lease {
    _ticket: Ticket,
    runner: Arc<Runner>,
    reply: Arc<LoadReply>,
}

impl Scheduler {
    /// A scheduler without models. Must be called within a tokio runtime.
    pub fn new(options: RunnerOptions, limits: Limits) -> Self {
        let state = State {
            machine: Machine::new(limits),
            requests: 0,
            requesters: HashMap::new(),
            runners: HashMap::new(),
            tasks: Tasks::new(),
        };
        let (alarm, set) = watch::channel(None);
        let inner = Inner { options, holder: Arc::default(), clock: Clock::new(), alarm, state: Mutex::new(state) };
        let inner = Arc::new(inner);
        spawn(wake(Arc::downgrade(&inner), set));
        Self(inner)
    }

    /// A loaded model for one request, which waits for its turn. Dropping the future gives up. `plan` is asked only where
    /// a load is needed, and again where there is a second attempt; where it has none, devices have no room beside other models, and
    /// these go before the next.
    pub async fn acquire<E, F>(&self, wanted: Wanted, plan: impl Fn(Attempt) -> F) -> Result<Lease, E>
    where
        E: From<Error>,
        F: Future<Output = Result<Option<LoadPlan>, E>>,
    {
        let (mut ticket, mut messages) = self.enter(wanted);
        loop {
            match messages.recv().await {
                Some(Message::Plan(runner, attempt)) => {
                    let plan = plan(attempt).await?;
                    let event = if plan.is_some() { Event::Planned { runner } } else { Event::Crowded { runner } };
                    let plan = plan.map(|plan| (ticket.name.as_str(), plan));
                    self.0.locked(|inner, state| inner.drive(state, event, plan));
                }
                Some(Message::Granted(runner, reply)) => {
                    ticket.runner = Some(runner.clone());
                    return Ok(Lease { _ticket: ticket, runner, reply });
                }
                Some(Message::Refused(error)) => return Err(error.into()),
                // Everybody who waits is told something before the end.
                None => return Err(Error::Stopped.into()),
            }
        }
    }

    fn enter(&self, wanted: Wanted) -> (Ticket, UnboundedReceiver<Message>) {
        let (sender, messages) = unbounded_channel();
        let Wanted { model, name, context, need, keep_alive, residence, choice, is_aside } = wanted;
        let request = self.0.locked(|inner, state| {
            let request = RequestId(state.requests);
            state.requests += 1;
            state.requesters.insert(request, sender);
            let name = name.clone();
            let ask = Ask { request, model, name, context, need, keep_alive, residence, choice, is_aside };
            inner.drive(state, Event::Ask(ask), None);
            request
        });
        (Ticket { scheduler: Arc::downgrade(&self.0), request, name, runner: None }, messages)
    }

    /// Whether a choice of device may mean GPUs on which the scheduler could have layers.
    pub fn may_use_gpus(device: &str) -> bool {
        gpu_driver::can_be_meant(device)
    }

    /// What is free of the devices that a choice means, and what of these blobs is in use there. `None` where it means no GPU, or
    /// nobody can say: runners see for themselves then.
    pub async fn survey(&self, device: &str, blobs: Vec<String>) -> Option<Survey> {
        let survey = self.0.holder.survey(&self.0.options, device, blobs).await;
        let survey = survey.inspect_err(|error| tracing::warn!(%error, "nobody holds weights on devices"));
        survey.ok().flatten()
    }

    /// Unloads a model at once. Requests that use it or wait for it fail. Says whether it was loaded.
    pub fn stop(&self, model: &str) -> bool {
        self.end(model, Stop::Now)
    }

    /// Unloads a model after the requests that use it and wait for it. Says whether it was loaded.
    pub fn stop_when_idle(&self, model: &str) -> bool {
        self.end(model, Stop::WhenIdle)
    }

    fn end(&self, model: &str, when: Stop) -> bool {
        self.0.locked(|inner, state| {
            let loaded = state.machine.has(model);
            inner.drive(state, Event::Stop { model: model.to_owned(), when }, None);
            loaded
        })
    }

    /// The loaded models, by name.
    pub fn loaded(&self) -> Vec<Loaded> {
        let mut loaded: Vec<Loaded> = self.0.locked(|inner, state| {
            let places = state.machine.loaded(inner.now());
            let describe = |place: crate::machine::LoadedPlace| {
                let (runner, reply) = state.runners.get(&place.runner)?.loaded.clone()?;
                Some(Loaded {
                    name: place.name,
                    key: LoadKey { model: place.model, context: reply.context },
                    reply: LoadReply::clone(&reply),
                    expires: place.remaining.and_then(|remaining| SystemTime::now().checked_add(remaining)),
                    pid: runner.pid(),
                    active: place.active,
                    waiting: place.waiting,
                })
            };
            places.into_iter().filter_map(describe).collect()
        });
        loaded.sort_by(|a, b| a.name.cmp(&b.name));
        loaded
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.0.locked(|_, state| state.machine.counts())
    }

    /// Whether nobody asks and nothing runs.
    #[cfg(all(test, feature = "schedules"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.locked(|_, state| state.requesters.is_empty() && state.runners.is_empty())
    }

    /// Unloads everything and waits until all processes are gone; for the end of the daemon. Nothing is loaded from now on.
    pub async fn stop_all(&self) {
        let tasks = self.0.locked(|inner, state| {
            inner.drive(state, Event::StopAll, None);
            state.tasks.take()
        });
        tasks.ended().await;
        self.0.holder.end().await;
    }
}

impl Inner {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is held half-changed can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked<T>(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>, &mut State) -> T) -> T {
        work(self, &mut self.lock())
    }

    /// Tells the machine what happened and does what it says. The plan is that of [`Event::Planned`].
    fn drive(self: &Arc<Self>, state: &mut State, event: Event, mut plan: Option<(&str, LoadPlan)>) {
        if let Event::Leave { request, .. } = &event {
            state.requesters.remove(request);
        }
        for action in state.machine.step(self.now(), event) {
            match action {
                Action::Start { runner } => {
                    if let Some((name, plan)) = plan.take() {
                        self.start(state, runner, name, plan);
                    }
                }
                Action::Plan { request, runner, attempt } => state.answer(request, Message::Plan(runner, attempt)),
                Action::Grant { request, runner } => state.grant(request, runner),
                Action::Refuse { request, error } => state.answer(request, Message::Refused(error)),
                Action::Kill { runner, why } => state.command(runner, Command::Kill, Some(why)),
                Action::Rebuild { runner, context } => state.command(runner, Command::Rebuild { context }, None),
            }
        }
        state.tasks.tidy();
        let wake = state.machine.wake();
        self.alarm.send_if_modified(|set| std::mem::replace(set, wake) != wake);
    }

    fn start(self: &Arc<Self>, state: &mut State, runner: RunnerId, name: &str, plan: LoadPlan) {
        let (commands, told) = unbounded_channel();
        let scheduler = Arc::downgrade(self);
        let report = move |report| {
            if let Some(scheduler) = scheduler.upgrade() {
                scheduler.report(runner, report);
            }
        };
        let life = supervise(self.options.clone(), self.holder.clone(), plan, told, report);
        state.tasks.begin(life);
        let supervised =
            Supervised { name: name.to_owned(), commands, begin: Instant::now(), killed: false, loaded: None };
        state.runners.insert(runner, supervised);
    }

    fn report(self: &Arc<Self>, runner: RunnerId, report: Report) {
        self.locked(|inner, state| {
            let Some(own) = state.runners.get_mut(&runner) else { return };
            let event = own.event(runner, report);
            if matches!(event, Event::Ended { .. }) {
                state.runners.remove(&runner);
            }
            inner.drive(state, event, None);
        });
    }
}

impl State {
    /// Whoever went away meanwhile tells the machine by leaving.
    fn answer(&self, request: RequestId, message: Message) {
        let _ = self.requesters.get(&request).map(|requester| requester.send(message));
    }

    fn grant(&self, request: RequestId, runner: RunnerId) {
        if let Some((runner, reply)) = self.runners.get(&runner).and_then(|own| own.loaded.clone()) {
            self.answer(request, Message::Granted(runner, reply));
        }
    }

    fn command(&mut self, runner: RunnerId, command: Command, why: Option<Why>) {
        if let Some(own) = self.runners.get_mut(&runner) {
            own.killed |= command == Command::Kill;
            tracing::info!(model = own.name, ?command, ?why, "the runner is told");
            // It may have ended a moment ago.
            let _ = own.commands.send(command);
        }
    }
}

impl Supervised {
    /// Notes what a report says, and tells it to people and the machine.
    fn event(&mut self, runner: RunnerId, report: Report) -> Event {
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

impl Lease {
    /// The runner.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// What the runner said after the load, or after the KV cache was made anew.
    pub fn reply(&self) -> &LoadReply {
        &self.reply
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(scheduler) = self.scheduler.upgrade() else { return };
        let failed = self.runner.as_ref().is_some_and(|runner| runner.has_failed());
        let outcome = if failed { Outcome::Failed } else { Outcome::Well };
        let request = self.request;
        scheduler.locked(|inner, state| inner.drive(state, Event::Leave { request, outcome }, None));
    }
}

/// Tells the machine that time has passed whenever it asked for it. Ends with the scheduler.
async fn wake(scheduler: Weak<Inner>, mut set: watch::Receiver<Option<Moment>>) {
    loop {
        let moment = *set.borrow_and_update();
        // The scheduler may end meanwhile: this does not keep it.
        let clock = scheduler.upgrade().map(|scheduler| scheduler.clock.clone());
        let alarm = async {
            match (clock, moment) {
                (Some(clock), Some(moment)) => clock.wait_until(moment).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = set.changed() => if changed.is_err() { return },
            () = alarm => {
                let Some(scheduler) = scheduler.upgrade() else { return };
                scheduler.locked(|inner, state| inner.drive(state, Event::Tick, None));
            }
        }
    }
}
