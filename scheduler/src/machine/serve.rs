//! The walk over the queue: serves requests that can be served, and starts loads for the other
//! ones.
//!
//! The walk goes from the oldest request to the youngest. Requests of one kind (in slots, or beside
//! them) for one model are served in order. The first request without room reserves everything that
//! becomes free. No younger request can take it, neither by a load nor by keeping a model busy that
//! must be unloaded. So every request is eventually served, regardless of later requests.

use std::collections::BTreeSet;

use content::Digest;

use super::Machine;
use super::event::{Action, Ask, Residence, RunnerId, Why};
use super::place::{Phase, Residency};
use super::room::Room;
use crate::{Attempt, Error};

/// The state of the walk so far.
#[derive(Debug, Default)]
struct Walk {
    /// Models that serve no younger requests.
    blocked: BTreeSet<Digest>,
    /// Models that serve no younger requests of one kind, because its places are taken: requests
    /// beside the slots (`true`) or in slots.
    full: BTreeSet<(Digest, bool)>,
    /// Whether an older request waits for room.
    claimed: bool,
}

/// The state of a model in relation to a request.
#[derive(Clone, Copy)]
enum Standing {
    /// The model has a free slot.
    Free,
    /// The model is idle, but loaded with another context.
    OtherContext,
    /// The model is idle, but its layers have another placement.
    OtherPlacement,
    /// A request of the same kind must end first.
    Full,
    /// Another operation must end first: a load, all requests, or a process.
    UnderWay,
    Absent,
}

impl Machine {
    /// Serves all requests that can be served, and starts the operations that the other ones need.
    pub(super) fn serve(&mut self) {
        let mut walk = Walk::default();
        for ask in std::mem::take(&mut self.queue) {
            if walk.blocked.contains(&ask.model) || walk.full.contains(&(ask.model, ask.is_aside)) {
                self.queue.push_back(ask);
            } else if let Some(waiting) = self.serve_one(ask, &mut walk) {
                self.queue.push_back(waiting);
            }
        }
    }

    /// Serves one request. Returns the request if it must wait, and records which younger requests
    /// must wait for it.
    fn serve_one(&mut self, ask: Ask, walk: &mut Walk) -> Option<Ask> {
        let standing = self.standing(&ask);
        if matches!(standing, Standing::Full) {
            walk.full.insert((ask.model, ask.is_aside));
            return Some(ask);
        }
        let waiting = self.serve_standing(ask, standing, walk)?;
        walk.blocked.insert(waiting.model);
        Some(waiting)
    }

    fn serve_standing(&mut self, ask: Ask, standing: Standing, walk: &mut Walk) -> Option<Ask> {
        match standing {
            Standing::Free => {
                self.grant(&ask);
                return None;
            }
            Standing::UnderWay | Standing::Full => return Some(ask),
            Standing::OtherPlacement => {
                self.kill(ask.model, Why::Moved);
                return Some(ask);
            }
            Standing::Absent if self.is_backing_off(ask.model) => return Some(ask),
            // A second attempt after a lack of memory starts when all evicted models are gone; it
            // reserves the room until then.
            Standing::Absent if self.retried.contains(&ask.model) && self.is_any_stopping() => {
                walk.claimed = true;
                return Some(ask);
            }
            Standing::OtherContext | Standing::Absent => {}
        }
        // A request that needs no more than its model already takes does not delay older requests.
        let needs_no_more = self.places.get(&ask.model).is_some_and(|place| ask.need <= place.need);
        if walk.claimed && !needs_no_more {
            return Some(ask);
        }
        match self.make_room(ask.model, ask.need) {
            Room::Now => self.begin(&ask),
            Room::Later { drained } => {
                walk.claimed = true;
                walk.blocked.extend(drained);
            }
            Room::Never { pinned } => {
                self.refuse(ask.request, Error::Pinned { pinned });
                return None;
            }
        }
        Some(ask)
    }

    fn standing(&self, ask: &Ask) -> Standing {
        let Some(place) = self.places.get(&ask.model) else { return Standing::Absent };
        match &place.phase {
            Phase::Ready(ready) if !ask.choice.is_met_by(place.choice) => {
                if ready.users.is_empty() {
                    Standing::OtherPlacement
                } else {
                    Standing::UnderWay
                }
            }
            Phase::Ready(ready) if ask.context.suits(place.context) => {
                if ready.has_room(ask.is_aside) {
                    Standing::Free
                } else {
                    Standing::Full
                }
            }
            Phase::Ready(ready) if ready.users.is_empty() => Standing::OtherContext,
            _ => Standing::UnderWay,
        }
    }

    fn grant(&mut self, ask: &Ask) {
        let Some(place) = self.places.get_mut(&ask.model) else { return };
        let Phase::Ready(ready) = &mut place.phase else { return };
        ready.users.insert(ask.request);
        if ask.is_aside {
            ready.aside.insert(ask.request);
        }
        if let Some(asked) = ask.keep_alive.asked {
            place.keep_alive = asked;
        }
        if ask.residence == Residence::Pinned {
            place.residence = Residence::Pinned;
        }
        self.actions.push(Action::Grant { request: ask.request, runner: place.runner });
    }

    /// Starts a load, or a new KV cache if the model is loaded. The caller has made room.
    fn begin(&mut self, ask: &Ask) {
        let context = ask.context.tokens();
        let deadline = self.now.checked_add(self.limits.load_timeout);
        if let Some(place) = self.places.get_mut(&ask.model) {
            let Phase::Ready(ready) = &place.phase else { return };
            place.phase = Phase::Rebuilding { deadline, since: ready.since };
            (place.context, place.need) = (context, ask.need);
            self.counts.rebuilds += 1;
            self.actions.push(Action::Rebuild { runner: place.runner, context });
            return;
        }
        let runner = RunnerId(self.runners);
        self.runners += 1;
        let place = Residency {
            runner,
            name: ask.name.clone(),
            need: ask.need,
            context,
            keep_alive: ask.keep_alive.asked.unwrap_or(ask.keep_alive.default),
            residence: ask.residence,
            choice: ask.choice,
            on_devices: true,
            phase: Phase::Planning { request: ask.request },
        };
        // No other model is on a device, or this is the second attempt: nothing more is unloaded.
        let is_last = !self.places.values().any(|place| place.on_devices) || self.retried.contains(&ask.model);
        let attempt = if is_last { Attempt::Last } else { Attempt::Beside };
        self.places.insert(ask.model, place);
        self.actions.push(Action::Plan { request: ask.request, runner, attempt });
    }

    /// Unloads models whose keep-alive has passed. A model with waiting requests stays.
    pub(super) fn expire(&mut self) {
        let over = |(model, place): (&Digest, &Residency)| {
            let over = place.expires().is_some_and(|moment| moment <= self.now) && !self.is_wanted(*model);
            over.then_some(*model)
        };
        let expired: Vec<Digest> = self.places.iter().filter_map(over).collect();
        for model in expired {
            self.kill(model, Why::Expired);
        }
    }
}
