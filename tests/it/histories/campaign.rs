//! One seed: two daemons, four clients, and a conductor who kills and checks.
//!
//! Everything is one task: between two awaits nothing else happens, which the order of kill and pause in [`conduct`]
//! needs. A daemon that is started again has another port, so that nothing that was meant for the one before reaches
//! it.

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

/// Clients that work at a time.
const CLIENTS: u64 = 4;
/// Operations of each.
const OPERATIONS: u64 = 40;
/// Checks between operations, besides those after a kill and at the end.
const CHECKS: u64 = 3;
/// Longest time from an operation's end to a kill, in microseconds: what the longest operations take.
const KILL_WITHIN: u64 = 30_000;

/// The repositories of the names that clients use. Manifests are put from one tag of a repository to another.
pub(super) const REPOSITORIES: [&str; 2] = ["left", "right"];
/// The tags of each.
pub(super) const TAGS: [&str; 4] = ["1", "2", "3", "4"];
/// The names at the peer that models are pushed to and pulled from.
pub(super) const SHARED: [&str; 2] = ["shared:1", "shared:2"];

/// A model to create from.
pub(super) struct Source {
    /// The folder with its files.
    pub(super) path: String,
    /// What a create of it gives.
    pub(super) digest: String,
    /// What the peer calls it.
    pub(super) name: String,
}

/// What the clients of a seed share.
pub(super) struct Campaign {
    pub(super) sources: Vec<Source>,
    /// The daemon that is never killed.
    pub(super) peer: Server,
    /// Gives up after [`PATIENCE`].
    pub(super) http: Http,
    /// Where the daemon is that is killed. Who works holds it for reading, who wants everybody to wait for writing.
    pub(super) address: RwLock<String>,
    /// How often the daemon was killed.
    kills: watch::Sender<usize>,
    /// It is dead, and was not started again.
    is_down: AtomicBool,
    record: Mutex<Record>,
}

/// What is known so far.
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
    // Whom it promised a blob to, only the daemon knew.
    server = restarted(&campaign, server).await;
    check::all(&campaign, &server, &mut conductor).await;
    check::nothing_stays(&campaign, &server).await;
    campaign.record.into_inner().expect("nobody panicked with it in hand").tally
}

/// What the conductor does, when so many operations have ended.
enum Event {
    Check,
    /// After that time.
    Kill(Duration),
}

fn events(random: &mut StdRng) -> Vec<(u64, Event)> {
    let all = CLIENTS * OPERATIONS;
    let mut events: Vec<(u64, Event)> =
        (1..=CHECKS).map(|number| (all * number / (CHECKS + 1), Event::Check)).collect();
    for _ in 0..random.random_range(1..=3) {
        let delay = Duration::from_micros(random.random_range(0..KILL_WITHIN));
        // The last ones have to be under way.
        events.push((random.random_range(1..all - CLIENTS * 2), Event::Kill(delay)));
    }
    events.sort_by_key(|(after, _)| *after);
    events
}

/// Checks and kills while clients work; gives the daemon that lives at the end.
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
            // Who asks for the address once this waits is told where the next daemon is. Who was given it before, and has
            // its turn only now, finds nobody.
            let mut address = campaign.address.write().await;
            server = server.restart(&[]).await;
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

/// Kills the daemon while nobody works, and starts it again.
async fn restarted(campaign: &Campaign, mut server: Server) -> Server {
    server.kill();
    campaign.died();
    server = server.restart(&[]).await;
    campaign.address.write().await.clone_from(&server.address);
    server
}

impl Campaign {
    /// Starts both daemons. The peer gets each source alone, which says what creates of it give.
    async fn start(folders: &[TempDir]) -> (Self, Server) {
        let (server, peer) = (Server::start(&[]).await, Server::start(&[]).await);
        // A connection that was kept for a while may be closed by the time it is used.
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

    /// Creates each source alone, so that there is something to begin with. That it gives what it gave the peer is for
    /// the first check.
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

    /// An operation begins.
    pub(super) fn begin(&self) -> Begun {
        self.record().history.begin()
    }

    /// An operation has ended with that answer. What must not be refused fails the test, and so does an answer that
    /// breaks off although nobody was killed.
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
                // Who removes a model ends its runner, whoever is asking it.
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

    /// A client was told what a name names.
    pub(super) fn read(&self, begun: Begun, place: Place, value: Value) {
        self.record().history.read(begun, place, value);
    }

    /// The daemon was killed.
    fn died(&self) {
        let deaths = {
            let mut record = self.record();
            record.tally.kills += 1;
            record.history.died()
        };
        self.kills.send_replace(deaths);
    }

    /// Whether the daemon has been killed since, or was dead already and has not been started again.
    pub(super) fn has_died(&self, begun: Begun) -> bool {
        self.is_down.load(Ordering::SeqCst) || self.record().history.has_died(begun)
    }

    /// Returns when the daemon has been killed since.
    pub(super) async fn until_death(&self, begun: Begun) {
        let mut kills = self.kills.subscribe();
        while !self.has_died(begun) {
            kills.changed().await.expect("invariant: the campaign has the sender");
        }
    }

    /// A collection was put off.
    pub(super) fn put_off(&self) {
        self.record().tally.put_off += 1;
    }

    /// Compares what all names name with the history.
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

    /// The models of a daemon with the digests of their manifests.
    pub(super) async fn listed(&self, address: &str) -> BTreeMap<String, String> {
        let answer = ask(self.http.get(format!("http://{address}/api/tags"))).await;
        let body = answer.expect_done("the list of models");
        let tags: Json = serde_json::from_slice(&body).expect("a list of models");
        let text = |value: &Json| value.as_str().expect("text").to_owned();
        let one = |model: &Json| (text(&model["name"]), format!("sha256:{}", text(&model["digest"])));
        list(&tags["models"]).iter().map(one).collect()
    }

    /// Two tokens of a model.
    pub(super) async fn generate(&self, address: &str, model: &str) -> Answer {
        let options = json!({"num_predict": 2});
        let body = json!({"model": model, "prompt": "x", "raw": true, "stream": false, "options": options});
        self.post(address, "/api/generate", &body).await
    }

    /// The name that a model of the peer has after a pull.
    pub(super) fn pulled(&self, shared: &str) -> String {
        format!("{}/library/{shared}", self.peer.address)
    }

    /// Every name that there can be.
    pub(super) fn places(&self) -> Vec<Place> {
        let here = names().into_iter().chain(SHARED.iter().map(|shared| self.pulled(shared)));
        let there = self.sources.iter().map(|source| source.name.as_str()).chain(SHARED);
        here.map(|name| Place::here(&name)).chain(there.map(Place::peer)).collect()
    }
}

/// The names that clients give to models here.
pub(super) fn names() -> Vec<String> {
    REPOSITORIES.iter().flat_map(|repository| TAGS.map(|tag| format!("{repository}:{tag}"))).collect()
}
