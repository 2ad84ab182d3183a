//! Which models are loaded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use protocol::{LoadReply, LoadRequest};
use tokio::sync::Mutex;

use crate::{Error, Runner, RunnerOptions};

/// What makes two requests share a runner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoadKey {
    /// The manifest's digest.
    pub model: String,
    /// Tokens that the KV cache holds.
    pub context: u64,
}

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long; not at all where it is zero.
    For(Duration),
    /// Until it is stopped.
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

/// Loads, keeps and unloads models. Clones share it.
#[derive(Clone, Debug)]
pub struct Scheduler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: RunnerOptions,
    /// At most so many models at a time.
    most: usize,
    slots: StdMutex<HashMap<LoadKey, Arc<Slot>>>,
    /// Held while a model is loaded: loads happen one after the other.
    loading: Mutex<()>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    runner: Runner,
    reply: LoadReply,
    state: StdMutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    /// Requests that use the runner at the moment.
    users: usize,
    keep_alive: KeepAlive,
    last_used: Instant,
    /// The same for people.
    expires: Option<SystemTime>,
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
    /// When it will be unloaded; `None` for never.
    pub expires: Option<SystemTime>,
    /// The runner's process id.
    pub pid: u32,
}

/// The use of a loaded model for one request.
#[derive(Debug)]
pub struct Lease {
    scheduler: Weak<Inner>,
    key: LoadKey,
    slot: Arc<Slot>,
}

fn lock<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is held half-changed can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scheduler {
    /// A scheduler without models. Must be called within a tokio runtime, where it looks for expired models.
    pub fn new(options: RunnerOptions, most: usize) -> Self {
        let inner =
            Arc::new(Inner { options, most: most.max(1), slots: StdMutex::default(), loading: Mutex::default() });
        tokio::spawn(expire(Arc::downgrade(&inner)));
        Self(inner)
    }

    /// A loaded model, loading it where it is not. `name` is for people; `plan` is asked only where a load is needed.
    pub async fn acquire<E: From<Error>>(
        &self,
        key: LoadKey,
        name: &str,
        keep_alive: KeepAliveChoice,
        plan: impl AsyncFnOnce() -> Result<LoadRequest, E>,
    ) -> Result<Lease, E> {
        if let Some(lease) = self.existing(&key, keep_alive).await {
            return Ok(lease);
        }
        let _loading = self.0.loading.lock().await;
        // Somebody may have loaded it while we waited.
        if let Some(lease) = self.existing(&key, keep_alive).await {
            return Ok(lease);
        }
        let request = plan().await?;
        self.make_room(&key)?;
        let runner = Runner::start(&self.0.options).await?;
        let reply = runner.load(&request, self.0.options.load_timeout).await?;
        tracing::info!(model = name, pid = runner.pid(), context = reply.context, device = reply.device, "loaded");
        let state = SlotState { users: 0, keep_alive: keep_alive.default, last_used: Instant::now(), expires: None };
        let slot = Arc::new(Slot { name: name.to_owned(), runner, reply, state: StdMutex::new(state) });
        lock(&self.0.slots).insert(key.clone(), slot.clone());
        Ok(self.lease(key, slot, keep_alive))
    }

    async fn existing(&self, key: &LoadKey, keep_alive: KeepAliveChoice) -> Option<Lease> {
        let slot = lock(&self.0.slots).get(key).cloned()?;
        if let Some(end) = slot.runner.ended().await {
            tracing::warn!(model = slot.name, end, "the runner had ended");
            self.forget(key, &slot);
            return None;
        }
        Some(self.lease(key.clone(), slot, keep_alive))
    }

    fn lease(&self, key: LoadKey, slot: Arc<Slot>, keep_alive: KeepAliveChoice) -> Lease {
        {
            let mut state = lock(&slot.state);
            state.users += 1;
            if let Some(asked) = keep_alive.asked {
                state.keep_alive = asked;
            }
            state.expires = None;
        }
        Lease { scheduler: Arc::downgrade(&self.0), key, slot }
    }

    /// Unloads another context of the same model, and as many idle models as it takes, the longest idle first.
    fn make_room(&self, key: &LoadKey) -> Result<(), Error> {
        let mut slots = lock(&self.0.slots);
        slots.retain(|other, slot| other.model != key.model || lock(&slot.state).users > 0);
        while slots.len() >= self.0.most {
            let idle = slots.iter().filter(|(_, slot)| lock(&slot.state).users == 0);
            let oldest = idle.min_by_key(|(_, slot)| lock(&slot.state).last_used).map(|(key, _)| key.clone());
            match oldest {
                Some(oldest) => slots.remove(&oldest),
                None => return Err(Error::Busy(slots.len())),
            };
        }
        Ok(())
    }

    /// Forgets a runner, unless another has taken its place.
    fn forget(&self, key: &LoadKey, slot: &Arc<Slot>) {
        self.0.forget(key, slot);
    }

    /// Unloads a model, whatever its context. Requests that use it fail. Says whether it was loaded.
    pub fn stop(&self, model: &str) -> bool {
        let mut slots = lock(&self.0.slots);
        let before = slots.len();
        slots.retain(|key, _| key.model != model);
        slots.len() < before
    }

    /// The loaded models, by name.
    pub fn loaded(&self) -> Vec<Loaded> {
        let describe = |(key, slot): (&LoadKey, &Arc<Slot>)| Loaded {
            name: slot.name.clone(),
            key: key.clone(),
            reply: slot.reply.clone(),
            expires: lock(&slot.state).expires,
            pid: slot.runner.pid(),
        };
        let mut loaded: Vec<Loaded> = lock(&self.0.slots).iter().map(describe).collect();
        loaded.sort_by(|a, b| a.name.cmp(&b.name));
        loaded
    }

    /// Unloads everything; for the end of the daemon.
    pub fn stop_all(&self) {
        lock(&self.0.slots).clear();
    }
}

impl Inner {
    fn forget(&self, key: &LoadKey, slot: &Arc<Slot>) {
        let mut slots = lock(&self.slots);
        if slots.get(key).is_some_and(|current| Arc::ptr_eq(current, slot)) {
            slots.remove(key);
        }
    }
}

impl Lease {
    /// The runner.
    pub fn runner(&self) -> &Runner {
        &self.slot.runner
    }

    /// What the runner said after the load.
    pub fn reply(&self) -> &LoadReply {
        &self.slot.reply
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let unload = {
            let mut state = lock(&self.slot.state);
            state.users -= 1;
            state.last_used = Instant::now();
            state.expires = match state.keep_alive {
                KeepAlive::For(time) => SystemTime::now().checked_add(time),
                KeepAlive::Forever => None,
            };
            state.users == 0 && state.keep_alive == KeepAlive::For(Duration::ZERO)
        };
        if unload && let Some(scheduler) = self.scheduler.upgrade() {
            scheduler.forget(&self.key, &self.slot);
        }
    }
}

/// Unloads idle models whose time is over, and forgets runners that ended by themselves.
async fn expire(scheduler: Weak<Inner>) {
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tick.tick().await;
        let Some(scheduler) = scheduler.upgrade() else { return };
        let slots: Vec<(LoadKey, Arc<Slot>)> =
            lock(&scheduler.slots).iter().map(|(key, slot)| (key.clone(), slot.clone())).collect();
        for (key, slot) in slots {
            let ended = slot.runner.ended().await.is_some();
            let expired = {
                let state = lock(&slot.state);
                let over = |time: Duration| state.last_used.elapsed() >= time;
                state.users == 0 && matches!(state.keep_alive, KeepAlive::For(time) if over(time))
            };
            if ended || expired {
                tracing::info!(model = slot.name, ended, "unloaded");
                scheduler.forget(&key, &slot);
            }
        }
    }
}
