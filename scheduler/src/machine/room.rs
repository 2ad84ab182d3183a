//! Making room for a model.
//!
//! Idle models are unloaded first, in the order of their remaining keep-alive. If that does not
//! suffice, the model that has been loaded for the longest gets no further requests until it is
//! idle. A pinned model is never unloaded, and a busy one is never unloaded while it is busy.

use content::Digest;

use super::event::{Residence, Why};
use super::place::{Phase, Residency};
use super::{Machine, Moment};

/// Whether there is room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Now,
    /// Not yet. The `drained` models get no younger requests until there is room.
    Later {
        drained: Vec<Digest>,
    },
    /// Never: this number of pinned models takes the room.
    Never {
        pinned: usize,
    },
}

/// The room that other models take.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    places: usize,
    bytes: u64,
}

impl Taken {
    fn add(&mut self, place: &Residency) {
        self.places += 1;
        self.bytes = self.bytes.saturating_add(place.need);
    }

    fn remove(&mut self, place: &Residency) {
        self.places -= 1;
        self.bytes = self.bytes.saturating_sub(place.need);
    }
}

impl Machine {
    /// Makes room for `model` with `need` bytes beside all other models, as far as that is possible
    /// at this moment.
    pub(super) fn make_room(&mut self, model: Digest, need: u64) -> Room {
        let (mut all, mut staying, mut pinned) = (Taken::default(), Taken::default(), Taken::default());
        for place in self.others(model) {
            all.add(place);
            if !place.is_stopping() {
                staying.add(place);
                if place.residence == Residence::Pinned {
                    pinned.add(place);
                }
            }
        }
        if self.fits(all, need) {
            return Room::Now;
        }
        if !self.fits(pinned, need) {
            return Room::Never { pinned: pinned.places };
        }
        while !self.fits(staying, need) {
            let Some(victim) = self.idle_victim(model, &|_| true) else { break };
            staying.remove(&self.places[&victim]);
            self.kill(victim, Why::Evicted);
        }
        let mut drained = Vec::new();
        for victim in self.busy_victims(model) {
            if self.fits(staying, need) {
                break;
            }
            staying.remove(&self.places[&victim]);
            drained.push(victim);
        }
        Room::Later { drained }
    }

    /// Unloads all models for which `is_meant` is true, except `model`, pinned ones, and busy ones.
    pub(super) fn evict_idle(&mut self, model: Digest, is_meant: impl Fn(&Residency) -> bool) {
        while let Some(victim) = self.idle_victim(model, &is_meant) {
            self.kill(victim, Why::Evicted);
        }
    }

    fn fits(&self, taken: Taken, need: u64) -> bool {
        let bytes = taken.bytes.saturating_add(need);
        taken.places < self.limits.most && self.limits.memory.is_none_or(|limit| bytes <= limit)
    }

    fn others(&self, model: Digest) -> impl Iterator<Item = &Residency> {
        self.places.iter().filter(move |(other, _)| **other != model).map(|(_, place)| place)
    }

    fn idle_victim(&self, model: Digest, is_meant: &impl Fn(&Residency) -> bool) -> Option<Digest> {
        let idle = self.places.iter().filter_map(|(other, place)| {
            let may_go = *other != model && place.residence == Residence::Evictable && is_meant(place);
            let ready = place.idle().filter(|_| may_go)?;
            Some((place.expires().unwrap_or(Moment::MAX), ready.idle_since, other))
        });
        idle.min().map(|(_, _, victim)| *victim)
    }

    /// Returns the busy models that may be kept from further requests: the ones that have had their
    /// full turn, the longest loaded first.
    fn busy_victims(&self, model: Digest) -> Vec<Digest> {
        let busy = self.places.iter().filter_map(|(other, place)| match &place.phase {
            Phase::Ready(ready) if *other != model && place.residence == Residence::Evictable => {
                let had_its_turn = self.now >= ready.since.saturating_add(self.limits.turn);
                (had_its_turn && !ready.users.is_empty()).then_some((ready.since, *other))
            }
            _ => None,
        });
        let mut busy: Vec<(Moment, Digest)> = busy.collect();
        busy.sort();
        busy.into_iter().map(|(_, victim)| victim).collect()
    }
}
