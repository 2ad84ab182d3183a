//! What names may name, told by what clients asked for and were answered.
//!
//! Every operation on a name has an interval, from before it was asked until after it was answered, and took effect at
//! one moment of it. One that was not answered, because the daemon was killed, may have taken effect at any moment
//! until the daemon was dead, or not at all. One that was refused has no effect and is not here.
//!
//! A name may name what an operation gave it, unless another that was acknowledged began after that had ended. It may
//! name nothing as long as no acknowledged operation has ended. An operation that copies gives what its source may have
//! named in its own interval. All of it is a pure function of the operations ([`Explained`]); no order of those that
//! overlap is guessed, so that a daemon that does nothing wrong is never accused.

use std::collections::{BTreeMap, BTreeSet};

/// A place in the order of everything that clients see; no two events have the same.
type Moment = u64;

/// The end of what may still take effect.
const OPEN: Moment = Moment::MAX;

/// The digest that a name names; `None` where there is no such name.
pub(super) type Value = Option<String>;

/// Whose name it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// That of the daemon that is killed.
    Here,
    /// That of the other daemon.
    Peer,
}

/// A name of one of the two daemons, as its list has it.
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

/// What an operation does to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It names this digest.
    Set(String),
    /// It names what the other named at a moment of the operation.
    Copy(Place),
    /// It names nothing.
    Remove,
}

/// Whether an operation is known to have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// It was acknowledged.
    Acknowledged,
    /// Nobody was told.
    Unknown,
}

/// Something that was done to a name, or may have been.
#[derive(Clone, Debug)]
struct Operation {
    place: Place,
    effect: Effect,
    certainty: Certainty,
    begun: Moment,
    /// It has no effect after this.
    ended: Moment,
}

/// What somebody was told that a name names, at a moment between the two.
#[derive(Clone, Debug)]
struct Reading {
    place: Place,
    value: Value,
    begun: Moment,
    ended: Moment,
}

/// When an operation began, and in which of the daemon's lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    at: Moment,
    life: usize,
}

/// Operations with what each may have given.
struct Explained<'a> {
    operations: &'a [Operation],
    given: Vec<BTreeSet<Value>>,
}

impl<'a> Explained<'a> {
    /// Finds out what copies may have given: the smallest answer, since a value comes from somewhere and not from a
    /// circle.
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

    /// Passes values on from sources to their copies; whether there was a new one.
    fn pass(&mut self) -> bool {
        let mut grown = false;
        for (index, operation) in self.operations.iter().enumerate() {
            let Effect::Copy(source) = &operation.effect else { continue };
            // What is not there is not copied.
            let values = self.between(source, operation.begun, operation.ended).into_iter().flatten().map(Some);
            let before = self.given[index].len();
            self.given[index].extend(values);
            grown |= self.given[index].len() > before;
        }
        grown
    }

    /// What `place` may have named at some moment from `from` until `until`.
    fn between(&self, place: &Place, from: Moment, until: Moment) -> BTreeSet<Value> {
        let all = self.operations.iter().enumerate();
        let here: Vec<(usize, &Operation)> = all.filter(|(_, operation)| operation.place == *place).collect();
        let is_done = |operation: &Operation| operation.certainty == Certainty::Acknowledged && operation.ended <= from;
        // What had ended before this was written over before the first of the moments.
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

/// Everything that happened so far.
#[derive(Debug, Default)]
pub(super) struct History {
    operations: Vec<Operation>,
    readings: Vec<Reading>,
    /// When each life of the daemon ended.
    deaths: Vec<Moment>,
    now: Moment,
}

impl History {
    /// The next moment.
    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// An operation begins.
    pub(super) fn begin(&mut self) -> Begun {
        Begun { at: self.tick(), life: self.deaths.len() }
    }

    /// The daemon is dead: what it was asked for has taken effect by now, or never will.
    pub(super) fn died(&mut self) -> usize {
        let now = self.tick();
        self.deaths.push(now);
        let open = |operation: &&mut Operation| operation.place.side == Side::Here && operation.ended == OPEN;
        for operation in self.operations.iter_mut().filter(open) {
            operation.ended = now;
        }
        self.deaths.len()
    }

    /// Whether the daemon has died since.
    pub(super) fn has_died(&self, begun: Begun) -> bool {
        self.deaths.len() > begun.life
    }

    /// An operation ends.
    pub(super) fn end(&mut self, begun: Begun, place: Place, effect: Effect, certainty: Certainty) {
        let now = self.tick();
        let death = self.deaths.get(begun.life).copied().unwrap_or(OPEN);
        let ended = match (certainty, place.side) {
            // An answer may be read after the death of who gave it.
            (Certainty::Acknowledged, _) => now.min(death),
            (Certainty::Unknown, Side::Here) => death,
            // What had been sent to the peer before is still on its way.
            (Certainty::Unknown, Side::Peer) => OPEN,
        };
        self.operations.push(Operation { place, effect, certainty, begun: begun.at, ended });
    }

    /// Somebody was told what a name names.
    pub(super) fn read(&mut self, begun: Begun, place: Place, value: Value) {
        let now = self.tick();
        let ended = self.deaths.get(begun.life).map_or(now, |death| now.min(*death));
        self.readings.push(Reading { place, value, begun: begun.at, ended });
    }

    /// Compares what all names name now with what they may name, and what clients were told since the last time. From
    /// now on the names are known to have named that at this moment.
    ///
    /// Nothing may be under way.
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

    /// What cannot be explained, with what was done to the name.
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
