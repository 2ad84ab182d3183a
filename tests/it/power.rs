//! Power cuts at any moment. The shim records the daemon's writes call by call. From each prefix of
//! the record, the test derives the possible states of the disk, with and without unsynced data. A
//! daemon that starts on such a state has everything that was acknowledged and no partial content,
//! and works.
//!
//! The tests try a sample of the states. `LODE_CAMPAIGN_POWER` tries all moments; it is the number
//! of random losses at each moment, in addition to the fixed ones.

mod disk;
mod file;
mod folder;
mod log;
mod loss;
mod state;

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::Server;
use crate::shim::{Mode, Shim, borrowed};
use crate::support::{list, number, say, tiny_model, variant};
use disk::Disk;
use loss::Loss;
use state::State;

/// The number of states that the tests try.
const SAMPLE: usize = 48;

/// Model names with the digests of their manifests.
type Names = BTreeMap<String, String>;

async fn names(server: &Server) -> Names {
    let tags = server.http.get(server.url("/api/tags")).send().await.expect("the daemon answers");
    let tags: Value = tags.json().await.expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    list(&tags["models"]).iter().map(|model| (text(&model["name"]), text(&model["digest"]))).collect()
}

/// A daemon whose writes are recorded.
struct Recording {
    shim: Shim,
    server: Server,
    peer: Server,
    /// The acknowledged names at each mark.
    acknowledged: Vec<Names>,
}

impl Recording {
    async fn start() -> (Self, Disk) {
        let shim = Shim::new();
        let mut server = Server::start(&[]).await;
        server.create("kept", &tiny_model()).await;
        server.kill();
        let before = Disk::snapshot(&server.home()).expect("a folder of a store");
        let environment = shim.environment(&server.home());
        shim.begin(Mode::Record);
        let server = server.restart(&borrowed(&environment)).await;
        let peer = Server::start(&[]).await;
        peer.create("theirs", variant(1).path()).await;
        let acknowledged = vec![names(&server).await];
        (Self { shim, server, peer, acknowledged }, before)
    }

    /// Marks in the log that everything before was acknowledged.
    async fn mark(&mut self) {
        self.acknowledged.push(names(&self.server).await);
        let mut log = std::fs::OpenOptions::new().append(true).open(self.shim.log()).expect("a log");
        log.write_all(format!("N\t{}\n", self.acknowledged.len() - 1).as_bytes()).expect("a mark");
    }

    async fn done(&mut self, path: &str, body: &Value) {
        let lines = self.server.lines(path, body).await;
        assert!(lines.iter().all(|line| line["error"].is_null()), "{path} {body}: {lines:?}");
        self.mark().await;
    }

    /// Runs one operation of each kind that writes.
    async fn operations(&mut self) {
        let theirs = format!("{}/library/theirs", self.peer.address);
        let other = variant(2);
        self.done("/api/create", &json!({"model": "m", "path": other.path()})).await;
        self.done("/api/create", &json!({"model": "m", "path": tiny_model()})).await;
        self.server.ask("/api/copy", &json!({"source": "kept", "destination": "copied"})).await;
        self.mark().await;
        self.done("/api/pull", &json!({"model": theirs, "insecure": true})).await;
        self.done("/api/create", &json!({"model": "small", "from": "kept", "quantize": "q8_0"})).await;
        self.server.ask("/api/lode/rollback", &json!({"model": "m"})).await;
        self.mark().await;
        let archive = self.peer.post("/api/save", &json!({"models": ["theirs"]})).await.bytes().await;
        let load = self.server.http.post(self.server.url("/api/load")).body(archive.expect("an archive")).send().await;
        assert!(load.expect("the daemon answers").status().is_success());
        self.mark().await;
        // A push from another daemon to this one.
        let here = format!("{}/u/pushed", self.server.address);
        self.peer.ask("/api/copy", &json!({"source": "theirs", "destination": here})).await;
        let pushed = self.peer.lines("/api/push", &json!({"model": here, "insecure": true})).await;
        assert_eq!(pushed.last().expect("a line")["status"], "success", "{pushed:?}");
        self.mark().await;
        self.remove("copied").await;
        self.remove(&theirs).await;
        self.done("/api/lode/prune", &json!({})).await;
        self.done("/api/lode/gc", &json!({})).await;
    }

    async fn remove(&mut self, name: &str) {
        let request = self.server.http.delete(self.server.url("/api/delete")).json(&json!({"model": name}));
        assert!(request.send().await.expect("the daemon answers").status().is_success(), "{name}");
        self.mark().await;
    }
}

/// A possible state of the disk, with the number of marks before it.
struct Case {
    state: State,
    marks: usize,
    shown: String,
}

/// Selects the states to try.
#[derive(Clone, Copy)]
struct Choice {
    /// The number of random losses at each moment.
    random: u64,
    /// Every so many moments are tried. If it exceeds 1, only two losses are tried at each of them.
    step: usize,
}

/// Generates the states moment by moment, and skips duplicates.
struct Moments<'a> {
    records: &'a [log::Record],
    disk: Disk,
    choice: Choice,
    applied: usize,
    tried: HashSet<(usize, u64)>,
}

impl Moments<'_> {
    /// Returns the states after so many records.
    fn cases(&mut self, number: usize, count: usize) -> Vec<Case> {
        for record in &self.records[self.applied..count] {
            let applied = self.disk.apply(record);
            applied.unwrap_or_else(|error| panic!("before record {count}: {record}: {error}"));
        }
        self.applied = count;
        let marks = self.records[..count].iter().filter(|record| matches!(record, log::Record::Mark(_))).count();
        let random = (0..self.choice.random).map(|n| Loss::Random(n << 32 | count as u64));
        let mut losses: Vec<Loss> = Loss::CERTAIN.into_iter().chain(random).collect();
        if self.choice.step > 1 {
            // The two losses vary from moment to moment.
            losses = (0..2).map(|n| losses[(number / self.choice.step + n * 3) % losses.len()]).collect();
        }
        let mut cases = Vec::new();
        for loss in losses {
            let state = self.disk.state(loss);
            if self.tried.insert((marks, state.fingerprint())) {
                cases.push(Case {
                    state,
                    marks,
                    shown: format!("{loss:?} after {count} of {} calls", self.records.len()),
                });
            }
        }
        cases
    }
}

/// Starts a daemon on a state and checks it. Returns how long the daemon took to respond.
async fn check(case: &Case, acknowledged: &[Names]) -> Duration {
    let begin = std::cell::Cell::new(Instant::now());
    let server = Server::prepared(&[("LODE_LOG", "warn")], |home: &Path| {
        case.state.write(home).expect("the state can be written");
        begin.set(Instant::now());
    })
    .await;
    let took = begin.get().elapsed();
    let (shown, found) = (&case.shown, names(&server).await);
    // The next operation may have taken effect too.
    let wanted: Vec<&Names> = acknowledged.iter().skip(case.marks).take(2).collect();
    assert!(wanted.contains(&&found), "{shown}: found {found:?}, acknowledged was {wanted:?}\n{}", case.state);
    let report = server.lines("/api/lode/fsck", &json!({})).await.pop().expect("a report");
    assert_eq!(report["report"]["problems"], json!([]), "{shown}");
    server.create("after", &tiny_model()).await;
    took
}

#[tokio::test]
async fn a_power_cut_takes_nothing_that_was_acknowledged() {
    let random = number("LODE_CAMPAIGN_POWER");
    let (mut recording, before) = Recording::start().await;
    recording.operations().await;
    recording.shim.end();
    // Killing the daemon flushes its last records to the log.
    recording.server.kill();
    let records = log::read(&recording.shim.log()).expect("a log of the shim");
    let boundaries = log::boundaries(&records);
    let step = if random.is_some() { 1 } else { boundaries.len().div_ceil(SAMPLE / 2) };
    let choice = Choice { random: random.unwrap_or(1), step };
    let mut moments = Moments { records: &records, disk: before, choice, applied: 0, tried: HashSet::new() };
    let (mut states, mut longest) = (0, Duration::ZERO);
    for (number, count) in boundaries.iter().copied().enumerate() {
        // Records of skipped moments are applied later.
        if number % step != 0 {
            continue;
        }
        let cases = moments.cases(number, count);
        let checked = futures_util::future::join_all(cases.iter().map(|case| check(case, &recording.acknowledged)));
        longest = checked.await.into_iter().fold(longest, Duration::max);
        states += cases.len();
        if random.is_some() && number % 100 == 0 {
            say(&format!("power: moment {number} of {}, {states} states", boundaries.len()));
        }
    }
    let (calls, longest) = (records.len(), longest.as_millis());
    say(&format!("power: {calls} calls, {states} states, the longest start took {longest} ms"));
    assert!(states > 0);
}
