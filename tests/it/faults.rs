//! Fault injection: each system call that touches the store fails in turn, once or permanently. The
//! daemon's operation then reports a clear error or succeeds, no invalid content is visible, and
//! the same operation works without a restart once the fault is gone.
//!
//! The tests try a sample of the calls. `LODE_CAMPAIGN_FAULTS` lists the operations, separated by
//! commas, of which all calls are tried, or is `all`. `LODE_CAMPAIGN_FROM` is the number of the
//! first call.

mod operation;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::Server;
use crate::shim::{Fault, Mode, SHORT_WRITE, Shim, borrowed};
use crate::support::{list, say};
use crate::{stored, support};
use operation::{Operation, Outcome};

/// The number of faults that the tests try for each kind of call in each operation.
const SAMPLE: usize = 3;
/// The time limit of an operation, with a fault or without.
const PATIENCE: Duration = Duration::from_mins(1);

const ENOSPC: u64 = 28;
const EIO: u64 = 5;
const EROFS: u64 = 30;
const EMFILE: u64 = 24;

/// The kinds of calls: number in the shim, name, and possible errors.
const KINDS: [(u8, &str, &[u64]); 13] = [
    (1, "open", &[EMFILE, EIO, ENOSPC, EROFS]),
    (2, "write", &[ENOSPC, EIO, SHORT_WRITE]),
    (3, "sync", &[EIO, ENOSPC]),
    (4, "rename", &[EIO, ENOSPC, EROFS]),
    (5, "link", &[EIO, ENOSPC, EROFS]),
    (6, "unlink", &[EIO, EROFS]),
    (7, "mkdir", &[ENOSPC, EIO, EROFS]),
    (8, "mmap", &[EMFILE]),
    (9, "rmdir", &[EIO, EROFS]),
    (10, "truncate", &[EIO, EROFS]),
    (12, "chmod", &[EIO, EROFS]),
    (13, "opendir", &[EMFILE, EIO]),
    (14, "utimens", &[EIO, EROFS]),
];

/// The outcomes of the faults of one kind of call.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    tried: u64,
    refused: u64,
    withstood: u64,
    moot: u64,
}

/// A daemon with the shim, and a peer for pulls and pushes.
struct Bench {
    shim: Shim,
    server: Server,
    peer: Server,
    /// The number of bytes of the log that were already checked.
    read: u64,
}

impl Bench {
    async fn start() -> Self {
        let shim = Shim::new();
        let plain = Server::start(&[]).await;
        let mut environment = shim.environment(&plain.home());
        environment.push(("LODE_LOG", "warn".to_owned()));
        environment.push(("LODE_ROOTS", operation::root(&plain).to_str().expect("UTF-8").to_owned()));
        let server = plain.restart(&borrowed(&environment)).await;
        let peer = Server::start(&[("LODE_LOG", "warn")]).await;
        operation::prepare(&server, &peer).await;
        Self { shim, server, peer, read: 0 }
    }

    /// Runs an operation with a time limit.
    async fn act(&self, operation: Operation) -> Outcome {
        let acted = tokio::time::timeout(PATIENCE, operation.act(&self.server, &self.peer)).await;
        acted.unwrap_or_else(|_| panic!("{operation:?} did not end within {PATIENCE:?}"))
    }

    /// Returns the kinds of the calls that an operation makes without faults.
    async fn count(&self, operation: Operation) -> Vec<u8> {
        operation.reset(&self.server, &self.peer).await;
        self.shim.begin(Mode::Count);
        let outcome = self.act(operation).await;
        self.shim.end();
        assert_eq!(outcome, Outcome::Done, "{operation:?} without a fault");
        operation.verify(&self.server, &self.peer).await;
        let kinds = self.shim.kinds();
        assert!(!kinds.is_empty(), "the shim sees nothing of {operation:?}");
        kinds
    }

    /// Runs an operation with a fault, and then again without one. Returns `None` if the fault did
    /// not occur.
    async fn attempt(&mut self, operation: Operation, fault: Fault) -> Option<Outcome> {
        operation.reset(&self.server, &self.peer).await;
        self.shim.inject(fault);
        let outcome = self.act(operation).await;
        let hits = self.shim.end();
        match &outcome {
            Outcome::Done => operation.verify(&self.server, &self.peer).await,
            Outcome::Refused(text) => {
                assert!(operation.is_clear(text), "{operation:?} with {fault:?} only says `{text}`");
            }
        }
        self.look_at_log(operation, fault);
        if operation != Operation::Repair || outcome == Outcome::Done {
            stored::blobs(&self.server.home());
        }
        // Repeats the operation, now that the fault is gone.
        if operation.can_be_repeated() || outcome != Outcome::Done {
            let again = self.act(operation).await;
            assert!(
                again == Outcome::Done || operation.was_done(&again),
                "{operation:?} after {fault:?} gave {outcome:?}, and then {again:?}"
            );
            operation.verify(&self.server, &self.peer).await;
        }
        // A collection now removes files whose removal failed because of the fault.
        self.server.ask("/api/lode/gc", &json!({})).await;
        let left = std::fs::read_dir(self.server.home().join("ingest")).expect("a folder").count();
        assert_eq!(left, 0, "ingests stay after {operation:?} with {fault:?} gave {outcome:?}");
        self.fsck(operation, fault).await;
        (hits > 0).then_some(outcome)
    }

    /// Asserts that nothing panicked except sled, whose panics the index catches.
    fn look_at_log(&mut self, operation: Operation, fault: Fault) {
        let new = self.server.log_from(self.read);
        let panicked = new.lines().find(|line| line.contains("panicked at") && !line.contains("/sled-"));
        assert_eq!(panicked, None, "{operation:?} with {fault:?}");
        self.read += new.len() as u64;
    }

    async fn fsck(&self, operation: Operation, fault: Fault) {
        let lines = self.server.lines("/api/lode/fsck", &json!({})).await;
        let report = &lines.last().expect("a report")["report"];
        assert_eq!(report["problems"], json!([]), "{operation:?} after {fault:?}");
    }
}

/// Returns the faults to try for an operation that makes these calls.
fn faults(kinds: &[u8], from: u64) -> Vec<(&'static str, Fault)> {
    let mut faults = Vec::new();
    for (at, kind) in (0u64..).zip(kinds).skip_while(|(at, _)| *at < from) {
        let Some((_, name, errors)) = KINDS.iter().find(|(number, ..)| number == kind) else { continue };
        for error in *errors {
            faults.extend([false, true].map(|sticky| (*name, Fault { at, error: *error, sticky })));
        }
    }
    faults
}

/// Chooses faults that are spread over all kinds and all times.
fn sample(faults: &[(&'static str, Fault)]) -> Vec<(&'static str, Fault)> {
    let mut by_kind: BTreeMap<&str, Vec<Fault>> = BTreeMap::new();
    for (kind, fault) in faults {
        by_kind.entry(kind).or_default().push(*fault);
    }
    let mut chosen = Vec::new();
    for (kind, of_kind) in by_kind {
        // The first, one in the middle and the last, so that the errors and the persistence vary.
        let mut places: Vec<usize> = (0..SAMPLE).map(|n| n * (of_kind.len() - 1) / (SAMPLE - 1)).collect();
        places.dedup();
        chosen.extend(places.into_iter().map(|place| (kind, of_kind[place])));
    }
    chosen
}

/// Tries an operation's faults. Returns the number of its calls and the number of tried faults.
async fn try_all(operation: Operation, exhaustive: bool, from: u64) -> (usize, usize) {
    let begin = Instant::now();
    let mut bench = Bench::start().await;
    let kinds = bench.count(operation).await;
    let all = faults(&kinds, from);
    let chosen = if exhaustive { all } else { sample(&all) };
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    for (number, (kind, fault)) in chosen.iter().enumerate() {
        if exhaustive && number % 200 == 0 {
            say(&format!("{operation:?}: {number} of {}, at call {}", chosen.len(), fault.at));
        }
        let tally = tallies.entry(kind).or_default();
        tally.tried += 1;
        match bench.attempt(operation, *fault).await {
            None => tally.moot += 1,
            Some(Outcome::Done) => tally.withstood += 1,
            Some(Outcome::Refused(_)) => tally.refused += 1,
        }
    }
    let failed: u64 = tallies.values().map(|tally| tally.refused + tally.withstood).sum();
    assert!(failed > 0, "no call of {operation:?} failed");
    if exhaustive {
        say(&format!("{operation:?}: {} calls, {} faults, {} s", kinds.len(), chosen.len(), begin.elapsed().as_secs()));
        for (kind, tally) in tallies {
            let Tally { tried, refused, withstood, moot } = tally;
            say(&format!("  {kind:8} tried {tried:5}  refused {refused:5}  withstood {withstood:5}  moot {moot:5}"));
        }
    }
    (kinds.len(), chosen.len())
}

#[tokio::test]
async fn every_operation_says_so_and_works_again() {
    support::allow_files();
    let asked = std::env::var("LODE_CAMPAIGN_FAULTS").unwrap_or_default();
    let from = support::number("LODE_CAMPAIGN_FROM").unwrap_or(0);
    let all = asked.is_empty() || asked == "all";
    let unknown = asked.split(',').find(|name| Operation::ALL.iter().all(|operation| operation.name() != *name));
    assert!(all || unknown.is_none(), "LODE_CAMPAIGN_FAULTS: there is no operation `{}`", unknown.unwrap_or_default());
    let wanted = |operation: &Operation| all || asked.split(',').any(|name| name == operation.name());
    // Operations run concurrently, because most of the time they wait for the disk.
    let running: Vec<_> = Operation::ALL
        .into_iter()
        .filter(wanted)
        .map(|operation| tokio::spawn(try_all(operation, !asked.is_empty(), from)))
        .collect();
    let (mut calls, mut faults) = (0, 0);
    for task in running {
        let tried = task.await.expect("an operation with faults");
        (calls, faults) = (calls + tried.0, faults + tried.1);
    }
    say(&format!("faults: {faults} of {calls} calls"));
}

#[tokio::test]
async fn a_disk_that_was_full_is_as_good_as_new() {
    let shim = Shim::new();
    let plain = Server::start(&[]).await;
    let environment = shim.environment(&plain.home());
    let server = plain.restart(&borrowed(&environment)).await;
    server.create("kept", &support::tiny_model()).await;
    let begun = server.http.post(server.url("/v2/u/upload/blobs/uploads/")).send().await.expect("an upload");
    let upload = begun.headers()["location"].to_str().expect("a place").to_owned();
    // From now on every write fails, including those of the index.
    shim.inject(Fault { at: 0, error: ENOSPC, sticky: true });
    for seed in 1..6 {
        let other = support::variant(seed);
        let lines = server.lines("/api/create", &json!({"model": "m", "path": other.path()})).await;
        let said = lines.last().expect("a line")["error"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains("No space left"), "{lines:?}");
    }
    let sent = server.http.patch(server.url(&upload)).body(vec![7; 1 << 20]).send().await.expect("an answer");
    assert!(sent.status().is_server_error(), "{}", sent.status());
    let sent = server.http.post(server.url("/api/lode/upload")).body(vec![7; 1 << 20]).send().await.expect("an answer");
    assert_eq!(sent.status().as_u16(), 507);
    assert!(sent.text().await.expect("text").contains("No space left"));
    // Operations that need no space work meanwhile.
    let tags: Value =
        server.http.get(server.url("/api/tags")).send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(list(&tags["models"]).len(), 1);
    server
        .ask("/api/generate", &json!({"model": "kept", "prompt": "x", "stream": false, "options": {"num_predict": 2}}))
        .await;
    server.ask("/api/lode/gc", &json!({})).await;
    assert!(shim.end() > 0);
    let other = support::variant(1);
    server.create("m", other.path()).await;
    let collected = server.ask("/api/lode/gc", &json!({})).await;
    assert_eq!(collected["put_off"], Value::Null);
    let report = server.lines("/api/lode/fsck", &json!({})).await.pop().expect("a report");
    assert_eq!(report["report"]["problems"], json!([]));
    assert_eq!(
        std::fs::read_dir(server.home().join("ingest")).expect("a folder").count(),
        0,
        "nothing is left of what failed"
    );
}
