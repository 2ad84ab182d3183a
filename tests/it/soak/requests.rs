//! Latencies and failures of the requests of a soak test, by kind.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::samples::figures;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Create,
    Copy,
    Delete,
    Show,
    Tags,
    Generate,
    Push,
    Pull,
    Gc,
    Du,
}

impl Kind {
    /// Every kind, in the order of [`Slowest`].
    pub(super) const ALL: [Self; 10] = [
        Self::Create,
        Self::Copy,
        Self::Delete,
        Self::Show,
        Self::Tags,
        Self::Generate,
        Self::Push,
        Self::Pull,
        Self::Gc,
        Self::Du,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Copy => "copy",
            Self::Delete => "delete",
            Self::Show => "show",
            Self::Tags => "tags",
            Self::Generate => "generate",
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Gc => "gc",
            Self::Du => "du",
        }
    }
}

/// The longest response time of each kind; zero if there was none.
pub(super) type Slowest = [Duration; Kind::ALL.len()];

/// A request that was answered or failed.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    begin: Instant,
    took: Duration,
}

impl Request {
    fn overlaps(&self, other: &Self) -> bool {
        self.begin < other.begin + other.took && other.begin < self.begin + self.took
    }
}

/// The outcomes of all requests so far. Any number of clients may add to it.
#[derive(Debug, Default)]
pub(super) struct Record(Mutex<Recorded>);

#[derive(Debug, Default)]
struct Recorded {
    /// Requests in the order in which they ended.
    requests: Vec<Request>,
    /// The number of failures, with the first message.
    errors: BTreeMap<Kind, (usize, String)>,
    /// The number of requests for models that another client had deleted.
    races: BTreeMap<Kind, usize>,
    /// The number of postponed collections.
    put_off: usize,
}

impl Record {
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().expect("nobody panics who holds it")
    }

    /// Adds a request that has just ended.
    pub(super) fn measured(&self, kind: Kind, begin: Instant) {
        self.recorded().requests.push(Request { kind, begin, took: begin.elapsed() });
    }

    pub(super) fn failed(&self, kind: Kind, message: String) {
        self.recorded().errors.entry(kind).or_insert((0, message)).0 += 1;
    }

    /// Records a request for a model that another client had deleted, which is not a failure.
    pub(super) fn lost_race(&self, kind: Kind) {
        *self.recorded().races.entry(kind).or_default() += 1;
    }

    /// Records a postponed collection.
    pub(super) fn put_off(&self) {
        self.recorded().put_off += 1;
    }

    /// Returns the longest times of the requests that ended after the first `seen`, and sets `seen`
    /// to the number of all requests.
    pub(super) fn slowest_since(&self, seen: &mut usize) -> Slowest {
        let recorded = self.recorded();
        let mut slowest = Slowest::default();
        for request in &recorded.requests[*seen..] {
            let own = &mut slowest[request.kind as usize];
            *own = request.took.max(*own);
        }
        *seen = recorded.requests.len();
        slowest
    }

    /// Returns a line for each kind of request that failed.
    pub(super) fn errors(&self) -> Vec<String> {
        let line = |(kind, (count, first)): (&Kind, &(usize, String))| format!("{count} × {}: {first}", kind.name());
        self.recorded().errors.iter().map(line).collect()
    }

    /// Formats latencies by kind, durations of collections and the delays that they caused, lost
    /// races and errors, one line each.
    pub(super) fn report(&self) -> String {
        let errors = self.errors();
        let recorded = self.recorded();
        let mut text = String::from("requests in ms:\n");
        for kind in Kind::ALL {
            let times = recorded.of(kind).map(|request| request.took).collect();
            let _ = writeln!(text, "  {:<9} {}", kind.name(), figures(times));
        }
        let waits: Vec<Duration> = recorded.of(Kind::Gc).filter_map(|gc| recorded.longest_during(gc)).collect();
        let _ = writeln!(text, "collections that put something off: {}", recorded.put_off);
        let _ = writeln!(text, "longest create or generate during each collection in ms: {}", figures(waits));
        for (kind, count) in &recorded.races {
            let _ = writeln!(text, "{count} × {}: another client had deleted the model", kind.name());
        }
        let _ = write!(
            text,
            "errors: {}",
            if errors.is_empty() { "none".to_owned() } else { format!("\n  {}", errors.join("\n  ")) }
        );
        text
    }
}

impl Recorded {
    fn of(&self, kind: Kind) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(move |request| request.kind == kind)
    }

    /// Returns the duration of the longest create or generate that overlapped a collection.
    fn longest_during(&self, gc: &Request) -> Option<Duration> {
        let users = self.requests.iter().filter(|own| matches!(own.kind, Kind::Create | Kind::Generate));
        users.filter(|own| own.overlaps(gc)).map(|own| own.took).max()
    }
}

#[test]
fn kinds_are_in_their_order() {
    for (place, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, place, "{}", kind.name());
    }
}

#[test]
fn only_who_waited_meanwhile_counts() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let request = |kind, at: u32, took: u32| Request { kind, begin: start + at * second, took: took * second };
    let gc = request(Kind::Gc, 10, 2);
    let requests = vec![request(Kind::Create, 0, 10), request(Kind::Generate, 12, 9), gc, request(Kind::Show, 9, 20)];
    let mut recorded = Recorded { requests, ..Recorded::default() };
    assert_eq!(recorded.longest_during(&gc), None, "before, after, and of another kind");
    recorded.requests.extend([request(Kind::Create, 9, 2), request(Kind::Generate, 11, 5)]);
    assert_eq!(recorded.longest_during(&gc), Some(5 * second));
}
