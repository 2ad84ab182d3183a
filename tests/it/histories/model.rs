//! The possible values of names, derived from the requests of the clients and the responses.
//!
//! Every operation on a name has an interval, from before its request until after its response, and
//! takes effect at one moment within it. An operation without a response, because the daemon was
//! killed, takes effect at any moment until the daemon's death, or not at all. A refused operation
//! has no effect and is not recorded.
//!
//! A name may have the value of an operation, unless another acknowledged operation began after
//! that one had ended. It may have no value as long as no acknowledged operation has ended. A copy
//! gives a value that its source may have had during the copy's interval. All of this is a pure
//! function of the operations ([`Explained`]). It assumes no order of overlapping operations, so a
//! correct daemon never fails the check.

use std::collections::{BTreeMap, BTreeSet};

/// A position in the total order of all events that clients see; every event has its own.
type Moment = u64;

/// The end of an operation that may still take effect.
const OPEN: Moment = Moment::MAX;

/// The digest that a name refers to; `None` if the name does not exist.
pub(super) type Value = Option<String>;

/// The daemon that a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// The daemon that is killed.
    Here,
    /// The other daemon.
    Peer,
}

/// A name of one of the two daemons, in the form of its list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) side: Side,
    pub(super) name: String,
}

impl Place {
    pub(super) fn here(name: &str) -> Self {
        Self { side: Side::Here, name: name.to_owned() }
    }

    pub(super) fn peer(name: &str) -> Self {
        Self { side: Side::Peer, name: name.to_owned() }
    }
}

/// The effect of an operation on a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Sets the name to this digest.
    Set(String),
    /// Sets the name to a value that the other name had during the operation.
    Copy(Place),
    /// Removes the name.
    Remove,
}

/// Whether an operation is known to have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// The daemon acknowledged it.
    Acknowledged,
    /// No response arrived.
    Unknown,
}

/// An operation on a name that took effect, or may have.
#[derive(Clone, Debug)]
struct Operation {
    place: Place,
    effect: Effect,
    certainty: Certainty,
    begun: Moment,
    /// The last moment at which it may take effect.
    ended: Moment,
}

/// A value of a name that a client read at a moment between the two.
#[derive(Clone, Debug)]
struct Reading {
    place: Place,
    value: Value,
    begun: Moment,
    ended: Moment,
}

/// The moment at which an operation began, and the number of the daemon's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    at: Moment,
    life: usize,
}

/// Operations with the values that each may have given.
struct Explained<'a> {
    operations: &'a [Operation],
    given: Vec<BTreeSet<Value>>,
}

impl<'a> Explained<'a> {
    /// Computes the values that copies may have given, as the least fixed point: a value has an
    /// origin, and no cycle of copies creates one.
    fn new(operations: &'a [Operation]) -> Self {
        let given = |operation: &Operation| match &operation.effect {
            Effect::Set(digest) => BTreeSet::from([Some(digest.clone())]),
            Effect::Remove => BTreeSet::from([None]),
            Effect::Copy(_) => BTreeSet::new(),
        };
        let mut explained = Self { operations, given: operations.iter().map(given).collect() };
        while explained.pass() {}
        explained
    }

    /// Propagates values from sources to copies. Returns whether a new value was found.
    fn pass(&mut self) -> bool {
        let mut grown = false;
        for (index, operation) in self.operations.iter().enumerate() {
            let Effect::Copy(source) = &operation.effect else { continue };
            // A missing source is not copied.
            let values = self.between(source, operation.begun, operation.ended).into_iter().flatten().map(Some);
            let before = self.given[index].len();
            self.given[index].extend(values);
            grown |= self.given[index].len() > before;
        }
        grown
    }

    /// Returns the values that `place` may have had at some moment from `from` until `until`.
    fn between(&self, place: &Place, from: Moment, until: Moment) -> BTreeSet<Value> {
        let all = self.operations.iter().enumerate();
        let here: Vec<(usize, &Operation)> = all.filter(|(_, operation)| operation.place == *place).collect();
        let is_done = |operation: &Operation| operation.certainty == Certainty::Acknowledged && operation.ended <= from;
        // The begin of the latest completed operation. It overwrote all operations that had ended
        // before.
        let latest = here.iter().filter(|(_, one)| is_done(one)).map(|(_, one)| one.begun).max();
        let stands =
            |operation: &Operation| operation.begun <= until && latest.is_none_or(|latest| operation.ended >= latest);
        let standing = here.iter().filter(|(_, one)| stands(one));
        let mut values: BTreeSet<Value> = standing.flat_map(|(index, _)| self.given[*index].iter().cloned()).collect();
        if latest.is_none() {
            values.insert(None);
        }
        values
    }
}

/// All recorded operations and readings.
#[derive(Debug, Default)]
pub(super) struct History {
    operations: Vec<Operation>,
    readings: Vec<Reading>,
    /// The moments at which the daemon died.
    deaths: Vec<Moment>,
    /// The moments at which the jobs of each dead daemon had ended in the next one.
    settlements: Vec<Moment>,
    now: Moment,
}

impl History {
    /// Returns the next moment.
    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Records the beginning of an operation.
    pub(super) fn begin(&mut self) -> Begun {
        Begun { at: self.tick(), life: self.deaths.len() }
    }

    /// Records the daemon's death. Returns the number of deaths.
    pub(super) fn died(&mut self) -> usize {
        let now = self.tick();
        self.deaths.push(now);
        self.deaths.len()
    }

    /// Records that the jobs of the dead daemon have ended: requests to it have taken effect by
    /// now, or never will.
    pub(super) fn settled(&mut self) {
        let now = self.tick();
        self.settlements.push(now);
        let open = |operation: &&mut Operation| operation.place.side == Side::Here && operation.ended == OPEN;
        for operation in self.operations.iter_mut().filter(open) {
            operation.ended = now;
        }
    }

    /// Whether the daemon has died since the operation began.
    pub(super) fn has_died(&self, begun: Begun) -> bool {
        self.deaths.len() > begun.life
    }

    /// Records the end of an operation.
    pub(super) fn end(&mut self, begun: Begun, place: Place, effect: Effect, certainty: Certainty) {
        let now = self.tick();
        let death = self.deaths.get(begun.life).copied().unwrap_or(OPEN);
        let ended = match (certainty, place.side) {
            // A client may read a response after the daemon's death.
            (Certainty::Acknowledged, _) => now.min(death),
            (Certainty::Unknown, Side::Here) => self.settlements.get(begun.life).copied().unwrap_or(OPEN),
            // A request that was sent to the peer before may still be on its way.
            (Certainty::Unknown, Side::Peer) => OPEN,
        };
        self.operations.push(Operation { place, effect, certainty, begun: begun.at, ended });
    }

    /// Records a client's reading of a name.
    pub(super) fn read(&mut self, begun: Begun, place: Place, value: Value) {
        let now = self.tick();
        let ended = self.deaths.get(begun.life).map_or(now, |death| now.min(*death));
        self.readings.push(Reading { place, value, begun: begun.at, ended });
    }

    /// Checks the current values of all names, and the readings since the last check, against the
    /// possible values. Records the values as known from now on.
    ///
    /// No operation may be in progress.
    pub(super) fn check(&mut self, seen: &BTreeMap<Place, Value>) -> Result<(), String> {
        let now = self.tick();
        let told = std::mem::take(&mut self.readings);
        let explained = Explained::new(&self.operations);
        let looked = |(place, value): (&Place, &Value)| Reading {
            place: place.clone(),
            value: value.clone(),
            begun: now,
            ended: now,
        };
        for reading in told.into_iter().chain(seen.iter().map(looked)) {
            let possible = explained.between(&reading.place, reading.begun, reading.ended);
            if !possible.contains(&reading.value) {
                return Err(self.contradiction(&reading, &possible));
            }
        }
        for (place, value) in seen {
            let effect = value.clone().map_or(Effect::Remove, Effect::Set);
            let (place, certainty) = (place.clone(), Certainty::Acknowledged);
            self.operations.push(Operation { place, effect, certainty, begun: now, ended: now });
        }
        Ok(())
    }

    /// Describes an impossible reading, with the operations on its name.
    fn contradiction(&self, reading: &Reading, possible: &BTreeSet<Value>) -> String {
        let Reading { place, value, begun, ended } = reading;
        let line = |operation: &Operation| {
            let Operation { effect, certainty, begun, ended, .. } = operation;
            let ended = if *ended == OPEN { "…".to_owned() } else { ended.to_string() };
            format!("  {begun} to {ended}: {effect:?}, {certainty:?}")
        };
        let done = self.operations.iter().filter(|operation| operation.place == *place);
        let lines: Vec<String> = done.map(line).collect();
        format!(
            "{place:?} names {value:?} between {begun} and {ended}; it may name {possible:?}; what was done:\n\
             {}\n  deaths at {:?}",
            lines.join("\n"),
            self.deaths
        )
    }
}

#[cfg(test)]
mod tests;
