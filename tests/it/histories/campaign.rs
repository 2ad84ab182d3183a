//! One seed: two daemons, four clients, and a conductor that kills and checks.
//!
//! Everything runs in one task: nothing happens between two awaits, which the order of kill and
//! pause in [`conduct`] relies on. A restarted daemon has another port, so that no request for its
//! predecessor reaches it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::Client as Http;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::sync::{RwLock, watch};

use super::check;
use super::client::Client;
use super::kind::Kind;
use super::model::{Begun, Certainty, Effect, History, Place, Value};
use super::request::{Answer, PATIENCE, ask};
use super::tally::Tally;
use crate::server::{Server, http};
use crate::support::list;

/// The number of concurrent clients.
const CLIENTS: u64 = 4;
/// The number of operations of each client.
const OPERATIONS: u64 = 40;
/// The number of checks between operations, besides those after a kill and at the end.
const CHECKS: u64 = 3;
/// The longest time from an operation's end to a kill, in microseconds; about the duration of the
/// longest operations.
const KILL_WITHIN: u64 = 30_000;

/// The repositories of the clients' models. Clients copy manifests between tags of a repository.
pub(super) const REPOSITORIES: [&str; 2] = ["left", "right"];
/// The tags in each repository.
pub(super) const TAGS: [&str; 4] = ["1", "2", "3", "4"];
/// The models at the peer that clients push to and pull from.
pub(super) const SHARED: [&str; 2] = ["shared:1", "shared:2"];

/// A model to create from.
pub(super) struct Source {
    /// The folder with its files.
    pub(super) path: String,
    /// The digest of the manifest that a create gives.
    pub(super) digest: String,
    /// The model's name at the peer.
    pub(super) name: String,
}

/// State that the clients of a seed share.
pub(super) struct Campaign {
    pub(super) sources: Vec<Source>,
    /// The daemon that is never killed.
    pub(super) peer: Server,
    /// The HTTP client; its requests time out after [`PATIENCE`].
    pub(super) http: Http,
    /// The address of the daemon that is killed. A working client holds the read lock; the write
    /// lock pauses all clients.
    pub(super) address: RwLock<String>,
    /// How often the daemon was killed.
    kills: watch::Sender<usize>,
    /// Whether the daemon is dead and not yet restarted.
    is_down: AtomicBool,
    record: Mutex<Record>,
}

/// The operations and outcomes so far.
#[derive(Default)]
struct Record {
    history: History,
    tally: Tally,
}

/// Runs one seed.
pub(super) async fn run(seed: u64, folders: &[TempDir]) -> Tally {
    let (campaign, mut server) = Campaign::start(folders).await;
    let random = |number: u64| StdRng::seed_from_u64(seed.wrapping_mul(CLIENTS + 1).wrapping_add(number));
    let mut conductor = random(CLIENTS);
    campaign.first_creates(&mut conductor).await;
    check::all(&campaign, &server, &mut conductor).await;
    let clients = (0..CLIENTS).map(|number| Client::new(&campaign, random(number)).run(OPERATIONS));
    (_, server) = tokio::join!(join_all(clients), conduct(&campaign, server, &mut conductor));
    check::all(&campaign, &server, &mut conductor).await;
    // Blobs that the daemon has promised to clients are known only to its process; a restart
    // forgets them.
    server = restarted(&campaign, server).await;
    check::all(&campaign, &server, &mut conductor).await;
    check::nothing_stays(&campaign, &server).await;
    campaign.record.into_inner().expect("nobody panicked with it in hand").tally
}

/// The conductor's action after a certain number of operations.
enum Event {
    Check,
    /// Kills the daemon after this delay.
    Kill(Duration),
}

fn events(random: &mut StdRng) -> Vec<(u64, Event)> {
    let all = CLIENTS * OPERATIONS;
    let mut events: Vec<(u64, Event)> =
        (1..=CHECKS).map(|number| (all * number / (CHECKS + 1), Event::Check)).collect();
    for _ in 0..random.random_range(1..=3) {
        let delay = Duration::from_micros(random.random_range(0..KILL_WITHIN));
        // The clients' last operations must still be ahead.
        events.push((random.random_range(1..all - CLIENTS * 2), Event::Kill(delay)));
    }
    events.sort_by_key(|(after, _)| *after);
    events
}

/// Checks and kills while clients work. Returns the daemon that runs at the end.
async fn conduct(campaign: &Campaign, mut server: Server, random: &mut StdRng) -> Server {
    for (after, event) in events(random) {
        while campaign.record().tally.operations() < after {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if let Event::Kill(delay) = event {
            tokio::time::sleep(delay).await;
            campaign.is_down.store(true, Ordering::SeqCst);
            server.kill();
            campaign.died();
            // A client that requests the read lock from now on gets the next daemon's address. A
            // client that already holds it and continues only now finds its connection refused.
            let mut address = campaign.address.write().await;
            server = server.restart(&[]).await;
            server.jobs_end().await;
            campaign.record().history.settled();
            address.clone_from(&server.address);
            campaign.is_down.store(false, Ordering::SeqCst);
            check::all(campaign, &server, random).await;
        } else {
            let _everybody_waits = campaign.address.write().await;
            check::all(campaign, &server, random).await;
        }
    }
    server
}

/// Kills the daemon while no client works, and restarts it.
async fn restarted(campaign: &Campaign, mut server: Server) -> Server {
    server.kill();
    campaign.died();
    server = server.restart(&[]).await;
    server.jobs_end().await;
    campaign.record().history.settled();
    campaign.address.write().await.clone_from(&server.address);
    server
}

impl Campaign {
    /// Starts both daemons. The peer creates each source, which gives the expected digests.
    async fn start(folders: &[TempDir]) -> (Self, Server) {
        let (server, peer) = (Server::start(&[]).await, Server::start(&[]).await);
        // The daemon may close a pooled connection just before the client reuses it.
        let http = http().timeout(PATIENCE).pool_max_idle_per_host(0).build().expect("a client");
        let mut campaign = Self {
            sources: Vec::new(),
            peer,
            http,
            address: RwLock::new(server.address.clone()),
            kills: watch::Sender::new(0),
            is_down: AtomicBool::new(false),
            record: Mutex::default(),
        };
        for (number, folder) in folders.iter().enumerate() {
            let name = format!("source:{number}");
            campaign.peer.create(&name, folder.path()).await;
            let listed = campaign.listed(&campaign.peer.address).await;
            let digest = listed.get(&name).expect("what was created is listed").clone();
            let known = campaign.sources.iter().any(|source| source.digest == digest);
            assert!(!known, "two sources give the manifest {digest}");
            let begun = campaign.begin();
            campaign.write(begun, Place::peer(&name), Effect::Set(digest.clone()), Certainty::Acknowledged);
            let path = folder.path().to_str().expect("a path in UTF-8").to_owned();
            campaign.sources.push(Source { path, digest, name });
        }
        (campaign, server)
    }

    /// Creates each source once, as the initial state. The first check compares the digests with
    /// the peer's.
    async fn first_creates(&self, random: &mut StdRng) {
        let address = self.address.read().await.clone();
        let client = Client::new(self, StdRng::from_rng(random));
        for (name, source) in names().iter().zip(&self.sources) {
            client.create(&address, name, source).await;
        }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("nobody panicked with it in hand")
    }

    /// Records the beginning of an operation.
    pub(super) fn begin(&self) -> Begun {
        self.record().history.begin()
    }

    /// Records the end of an operation. Panics on a refusal that the kind of operation does not
    /// allow, and on a broken connection if the daemon was not killed.
    pub(super) fn end(&self, kind: Kind, begun: Begun, answer: &Answer, write: Option<(Place, Effect)>) {
        self.record().tally.count(kind, answer);
        let certainty = match answer {
            Answer::Done(_) => Certainty::Acknowledged,
            Answer::Lost(how) => {
                let name = kind.name();
                assert!(self.has_died(begun), "{name}: the connection broke, and nobody was killed: {how}");
                Certainty::Unknown
            }
            Answer::Refused { status, text } => {
                assert!(kind.may_be_refused(*status), "{} was refused: {status} {text}", kind.name());
                // A remove ends the model's runner, whichever client uses it.
                let stopped = kind == Kind::Generate && text.contains("signal: 9");
                let panicked = ["panicked", "ended unexpectedly"].iter().any(|word| text.contains(word)) && !stopped;
                assert!(!panicked, "{}: {text}", kind.name());
                return;
            }
        };
        if let Some((place, effect)) = write {
            self.write(begun, place, effect, certainty);
        }
    }

    fn write(&self, begun: Begun, place: Place, effect: Effect, certainty: Certainty) {
        self.record().history.end(begun, place, effect, certainty);
    }

    /// Records a client's reading of a name.
    pub(super) fn read(&self, begun: Begun, place: Place, value: Value) {
        self.record().history.read(begun, place, value);
    }

    /// Records that the daemon was killed.
    fn died(&self) {
        let deaths = {
            let mut record = self.record();
            record.tally.kills += 1;
            record.history.died()
        };
        self.kills.send_replace(deaths);
    }

    /// Whether the daemon was killed since the operation began, or was already dead then.
    pub(super) fn has_died(&self, begun: Begun) -> bool {
        self.is_down.load(Ordering::SeqCst) || self.record().history.has_died(begun)
    }

    /// Waits until the daemon was killed since the operation began.
    pub(super) async fn until_death(&self, begun: Begun) {
        let mut kills = self.kills.subscribe();
        while !self.has_died(begun) {
            kills.changed().await.expect("invariant: the campaign has the sender");
        }
    }

    /// Records that a collection was postponed.
    pub(super) fn put_off(&self) {
        self.record().tally.put_off += 1;
    }

    /// Compares the values of all names with the history.
    pub(super) fn compare(&self, seen: &BTreeMap<Place, Value>) {
        let compared = {
            let mut record = self.record();
            record.tally.checks += 1;
            record.history.check(seen)
        };
        if let Err(contradiction) = compared {
            panic!("{contradiction}");
        }
    }

    /// Posts a document to one of the daemons.
    pub(super) async fn post(&self, address: &str, path: &str, body: &Json) -> Answer {
        ask(self.http.post(format!("http://{address}{path}")).json(body)).await
    }

    /// Returns the models of a daemon with the digests of their manifests.
    pub(super) async fn listed(&self, address: &str) -> BTreeMap<String, String> {
        let answer = ask(self.http.get(format!("http://{address}/api/tags"))).await;
        let body = answer.expect_done("the list of models");
        let tags: Json = serde_json::from_slice(&body).expect("a list of models");
        let text = |value: &Json| value.as_str().expect("text").to_owned();
        let one = |model: &Json| (text(&model["name"]), format!("sha256:{}", text(&model["digest"])));
        list(&tags["models"]).iter().map(one).collect()
    }

    /// Generates two tokens with a model.
    pub(super) async fn generate(&self, address: &str, model: &str) -> Answer {
        let options = json!({"num_predict": 2});
        let body = json!({"model": model, "prompt": "x", "raw": true, "stream": false, "options": options});
        self.post(address, "/api/generate", &body).await
    }

    /// Returns the name of a peer's model after a pull.
    pub(super) fn pulled(&self, shared: &str) -> String {
        format!("{}/library/{shared}", self.peer.address)
    }

    /// Returns every possible name.
    pub(super) fn places(&self) -> Vec<Place> {
        let here = names().into_iter().chain(SHARED.iter().map(|shared| self.pulled(shared)));
        let there = self.sources.iter().map(|source| source.name.as_str()).chain(SHARED);
        here.map(|name| Place::here(&name)).chain(there.map(Place::peer)).collect()
    }
}

/// Returns the names of the clients' models at the daemon that is killed.
pub(super) fn names() -> Vec<String> {
    REPOSITORIES.iter().flat_map(|repository| TAGS.map(|tag| format!("{repository}:{tag}"))).collect()
}
