//! Carries out the decisions of the machine: notifies waiting requests, starts and ends runners,
//! and sends ticks at the requested time.
//!
//! One lock guards everything. It is held for one step and its actions; no code awaits while
//! holding it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime};

use content::Digest;
use protocol::{LoadReply, Survey};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::gpu_driver;
use crate::holder::Holder;
use crate::load_plan::LoadPlan;
use crate::loaded::{LoadKey, Loaded};
use crate::machine::{Action, Ask, Event, Machine, Moment, Outcome, RequestId, RunnerId, Stop, Why};
use crate::request::AcquireRequest;
use crate::supervised::Supervised;
use crate::supervisor::{Command, Report, supervise};
use crate::sync::{Clock, Mutex, MutexGuard, PoisonError, Tasks, spawn};
use crate::{Attempt, Counts, Error, Limits, Runner, RunnerOptions};

/// Loads, keeps and unloads models. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Scheduler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: RunnerOptions,
    holder: Arc<Holder>,
    clock: Clock,
    /// The next moment at which the machine needs a tick.
    alarm: watch::Sender<Option<Moment>>,
    state: Mutex<SchedulerState>,
}

#[derive(Debug)]
struct SchedulerState {
    machine: Machine,
    /// Number of requests so far.
    requests: u64,
    /// The requests that have not left.
    requesters: HashMap<RequestId, UnboundedSender<Message>>,
    runners: HashMap<RunnerId, Supervised>,
    /// The supervisors of the runners. One may start when a lease is dropped, which may happen
    /// outside of a runtime.
    tasks: Tasks,
}

/// A message to a waiting request.
#[derive(Debug)]
enum Message {
    Plan(RunnerId, Attempt),
    Granted(Arc<Runner>, Arc<LoadReply>),
    Refused(Error),
}

/// A request from its arrival to its end; dropping the ticket makes it leave.
#[derive(Debug)]
struct Ticket {
    scheduler: Weak<Inner>,
    request: RequestId,
    name: String,
    /// Set once the request is granted.
    runner: Option<Arc<Runner>>,
}

/// A loaded model that is granted to one request. The request leaves when the lease is dropped.
#[derive(Debug)]
#[must_use = "the model is given back when this is dropped"]
pub struct Lease {
    _ticket: Ticket,
    runner: Arc<Runner>,
    reply: Arc<LoadReply>,
}

impl Scheduler {
    /// Creates a scheduler without models. Must be called within a tokio runtime.
    pub fn new(options: RunnerOptions, limits: Limits) -> Self {
        let state = SchedulerState {
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

    /// Waits for a loaded model for one request. Dropping the future cancels the request.
    ///
    /// `plan` is called only if a load is needed, and a second time for a second attempt. It
    /// returns `None` if devices have no room beside other models; these are unloaded before the
    /// next attempt.
    pub async fn acquire<E, F>(&self, wanted: AcquireRequest, plan: impl Fn(Attempt) -> F) -> Result<Lease, E>
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
                // Every waiting request receives a message before its channel closes.
                None => return Err(Error::Stopped.into()),
            }
        }
    }

    fn enter(&self, wanted: AcquireRequest) -> (Ticket, UnboundedReceiver<Message>) {
        let (sender, messages) = unbounded_channel();
        let AcquireRequest { model, name, context, need, keep_alive, residence, choice, is_aside } = wanted;
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

    /// Whether a choice of device may include GPUs on which layers can be placed.
    pub fn may_use_gpus(device: &str) -> bool {
        gpu_driver::can_be_meant(device)
    }

    /// Returns the free memory of the devices that `device` selects, and which of the blobs are in
    /// use there. Returns `None` if the selection includes no GPU, or if the holder fails; runners
    /// then query the devices themselves.
    pub async fn survey(&self, device: &str, blobs: Vec<String>) -> Option<Survey> {
        let survey = self.0.holder.survey(&self.0.options, device, blobs).await;
        let survey = survey.inspect_err(
            |error| tracing::warn!(%error, "the holder process failed; runners query the devices themselves"),
        );
        survey.ok().flatten()
    }

    /// Unloads a model at once. Requests that use it or wait for it fail. Returns whether it was
    /// loaded.
    pub fn stop(&self, model: &Digest) -> bool {
        self.end(model, Stop::Now)
    }

    /// Unloads a model after the requests that use it or wait for it. Returns whether it was
    /// loaded.
    pub fn stop_when_idle(&self, model: &Digest) -> bool {
        self.end(model, Stop::WhenIdle)
    }

    fn end(&self, model: &Digest, when: Stop) -> bool {
        let model = *model;
        self.0.locked(|inner, state| {
            let loaded = state.machine.has(model);
            inner.drive(state, Event::Stop { model, when }, None);
            loaded
        })
    }

    /// Returns the loaded models, sorted by name.
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

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.0.locked(|_, state| state.machine.counts())
    }

    /// Whether there are no requests and no runners.
    #[cfg(all(test, feature = "schedules"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.locked(|_, state| state.requesters.is_empty() && state.runners.is_empty())
    }

    /// Unloads all models and waits until all processes are gone; for the end of the daemon. No
    /// model can be loaded afterwards.
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

    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        // No panic can leave the state half-changed, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked<T>(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>, &mut SchedulerState) -> T) -> T {
        work(self, &mut self.lock())
    }

    /// Passes an event to the machine and carries out its actions. `plan` belongs to
    /// [`Event::Planned`].
    fn drive(self: &Arc<Self>, state: &mut SchedulerState, event: Event, mut plan: Option<(&str, LoadPlan)>) {
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

    fn start(self: &Arc<Self>, state: &mut SchedulerState, runner: RunnerId, name: &str, plan: LoadPlan) {
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

impl SchedulerState {
    /// Sends a message to a request. A request that is gone has left the machine through
    /// [`Event::Leave`].
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
            tracing::info!(model = own.name, ?command, ?why, "command to the runner");
            // The runner may have ended a moment ago.
            let _ = own.commands.send(command);
        }
    }
}

impl Lease {
    /// Returns the runner.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Returns the runner's reply to the load or to the last new KV cache.
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

/// Sends a tick to the machine whenever it has requested one. Ends with the scheduler.
async fn wake(scheduler: Weak<Inner>, mut set: watch::Receiver<Option<Moment>>) {
    loop {
        let moment = *set.borrow_and_update();
        // The task holds no strong reference while it waits, so the scheduler may end meanwhile.
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
