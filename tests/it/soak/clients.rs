//! The clients of a soak test: they create and remove models at random, and send requests about
//! them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use super::requests::{Kind, Record};
use super::samples::Sample;
use super::{BASES, Scale};
use crate::server::{Server, http};
use crate::support::say;

/// The number of concurrent clients, in addition to the maintenance tasks.
const CLIENTS: u64 = 8;

/// Returns the name of the base model for a number. Bases remain, and only they generate.
pub(super) fn base(number: u64) -> String {
    format!("base{}", number % BASES)
}

/// Returns the name of a temporary model.
pub(super) fn name(number: u64) -> String {
    format!("m{number}")
}

/// The temporary models, by number. Numbers are never reused, so a missing model was either deleted
/// by another client or lost by the daemon.
#[derive(Debug, Default)]
pub(super) struct Models {
    here: Mutex<Vec<u64>>,
    next: AtomicU64,
}

impl Models {
    /// Returns the numbers of the existing models.
    pub(super) fn here(&self) -> MutexGuard<'_, Vec<u64>> {
        self.here.lock().expect("nobody panics who holds it")
    }

    /// Returns an unused number.
    fn fresh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn add(&self, number: u64) {
        self.here().push(number);
    }

    /// Returns a random model, which another client may delete meanwhile.
    fn any(&self, random: &mut StdRng) -> Option<u64> {
        let here = self.here();
        (!here.is_empty()).then(|| here[random.random_range(0..here.len())])
    }

    /// Takes a random model out of the list, so that only the caller deletes it.
    fn claim(&self, random: &mut StdRng) -> Option<u64> {
        let mut here = self.here();
        let place = (!here.is_empty()).then(|| random.random_range(0..here.len()))?;
        Some(here.swap_remove(place))
    }
}

/// A request whose response was not 200.
#[derive(Debug)]
struct Failure {
    /// `None` if the response was incomplete.
    status: Option<u16>,
    message: String,
}

async fn send(request: RequestBuilder) -> Result<String, Failure> {
    let unanswered = |error: reqwest::Error| Failure { status: None, message: format!("no whole answer: {error:?}") };
    let answer = request.send().await.map_err(unanswered)?;
    let status = answer.status().as_u16();
    let text = answer.text().await.map_err(unanswered)?;
    if status == 200 { Ok(text) } else { Err(Failure { status: Some(status), message: format!("{status}: {text}") }) }
}

/// The clients of a daemon. Their connections close when this is dropped.
pub(super) struct Clients<'a> {
    server: &'a Server,
    /// The daemon that models are pushed to and pulled from.
    peer: &'a Server,
    models: &'a Models,
    http: Client,
    record: Record,
}

impl<'a> Clients<'a> {
    pub(super) fn new(server: &'a Server, peer: &'a Server, models: &'a Models) -> Self {
        // A request without a response counts as a failure after a timeout.
        let http = http().timeout(Duration::from_mins(10)).build().expect("a client");
        Self { server, peer, models, http, record: Record::default() }
    }

    /// Closes all connections and returns the record of the requests.
    pub(super) fn into_record(self) -> Record {
        self.record
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.http.get(self.server.url(path))
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.http.post(self.server.url(path)).json(body)
    }

    /// Sends a request that must succeed. Returns whether it did.
    async fn done(&self, kind: Kind, request: RequestBuilder) -> bool {
        let begin = Instant::now();
        let answer = send(request).await;
        self.record.measured(kind, begin);
        answer.map_err(|failure| self.record.failed(kind, failure.message)).is_ok()
    }

    /// Sends a request about a model that another client may delete meanwhile. Returns whether it
    /// succeeded.
    async fn done_if_here(&self, kind: Kind, number: u64, request: RequestBuilder) -> bool {
        let begin = Instant::now();
        let answer = send(request).await;
        self.record.measured(kind, begin);
        match answer {
            Ok(_) => true,
            Err(Failure { status: Some(404), .. }) if !self.models.here().contains(&number) => {
                self.record.lost_race(kind);
                false
            }
            Err(failure) => {
                self.record.failed(kind, failure.message);
                false
            }
        }
    }

    /// Creates a model from a base, with a small layer that no other model has.
    async fn create(&self, number: u64) -> bool {
        let mut body = json!({"model": name(number), "from": base(number), "stream": false});
        match number % 3 {
            0 => body["system"] = format!("You are the assistant {number}.").into(),
            1 => body["template"] = format!("{{{{ .System }}}} {number}: {{{{ .Prompt }}}}").into(),
            _ => body["parameters"] = json!({"seed": number, "temperature": 0.5}),
        }
        self.done(Kind::Create, self.post("/api/create", &body)).await
    }

    fn copy(&self, source: &str, number: u64) -> RequestBuilder {
        self.post("/api/copy", &json!({"source": source, "destination": name(number)}))
    }

    async fn delete(&self, model: &str) -> bool {
        let request = self.http.request(Method::DELETE, self.server.url("/api/delete")).json(&json!({"model": model}));
        self.done(Kind::Delete, request).await
    }

    /// Creates models until there are `count`.
    pub(super) async fn fill(&self, count: u64) {
        let begin = Instant::now();
        join_all((0..CLIENTS).map(|_| self.fill_by_one(count, begin))).await;
    }

    async fn fill_by_one(&self, count: u64, begin: Instant) {
        loop {
            let number = self.models.fresh();
            if number >= count {
                return;
            }
            assert!(self.create(number).await, "{:?}", self.record.errors());
            self.models.add(number);
            let made = number + 1;
            if made.is_multiple_of(1000) || made == count {
                let time = begin.elapsed();
                say(&format!("{made} models after {time:.1?}: {:.1} a second", made as f64 / time.as_secs_f64()));
            }
        }
    }

    /// Runs random operations until the end.
    async fn churn(&self, mut random: StdRng, end: Instant) {
        while Instant::now() < end {
            match random.random_range(0..100_u32) {
                0..30 => self.replace(&mut random).await,
                30..45 => self.replace_by_copy(&mut random).await,
                45..70 => self.show(&mut random).await,
                70..90 => self.generate(&mut random).await,
                _ => self.send_away_and_back(&mut random).await,
            }
        }
    }

    async fn remove_any(&self, random: &mut StdRng) {
        if let Some(number) = self.models.claim(random) {
            self.delete(&name(number)).await;
        }
    }

    async fn replace(&self, random: &mut StdRng) {
        let number = self.models.fresh();
        if self.create(number).await {
            self.models.add(number);
            self.remove_any(random).await;
        }
    }

    async fn replace_by_copy(&self, random: &mut StdRng) {
        let Some(source) = self.models.any(random) else { return };
        let number = self.models.fresh();
        let request = self.copy(&name(source), number);
        if self.done_if_here(Kind::Copy, source, request).await {
            self.models.add(number);
            self.remove_any(random).await;
        }
    }

    async fn show(&self, random: &mut StdRng) {
        let Some(number) = self.models.any(random) else { return };
        let request = self.post("/api/show", &json!({"model": name(number)}));
        self.done_if_here(Kind::Show, number, request).await;
    }

    async fn generate(&self, random: &mut StdRng) {
        let (model, word) = (base(random.random()), random.random::<u16>());
        let options = json!({"num_predict": 4, "temperature": 1});
        let prompt = format!("Hello {word}");
        let body = json!({"model": model, "prompt": prompt, "raw": true, "stream": false, "options": options});
        self.done(Kind::Generate, self.post("/api/generate", &body)).await;
    }

    /// Pushes a model, deletes it here, and pulls it back under a new number.
    async fn send_away_and_back(&self, random: &mut StdRng) {
        let Some(number) = self.models.claim(random) else { return };
        let here = name(number);
        let there = format!("{}/soak/{here}", self.peer.address);
        let push = self.post("/api/push", &json!({"model": here, "destination": there, "stream": false}));
        let pull = self.post("/api/pull", &json!({"model": there, "stream": false}));
        let is_back =
            self.done(Kind::Push, push).await && self.delete(&here).await && self.done(Kind::Pull, pull).await;
        if !is_back {
            return;
        }
        let back = self.models.fresh();
        let copy = self.copy(&there, back);
        if self.done(Kind::Copy, copy).await {
            self.models.add(back);
        }
        self.delete(&there).await;
        if !self.peer.remove(&format!("soak/{here}")).await {
            self.record.failed(Kind::Push, format!("the peer does not have `{here}`, which was pushed to it"));
        }
    }

    /// Runs a collection while other clients work.
    async fn collect(&self) {
        let begin = Instant::now();
        let answer = send(self.post("/api/lode/gc", &json!({}))).await;
        self.record.measured(Kind::Gc, begin);
        match answer {
            Ok(text) if puts_off(&serde_json::from_str(&text).expect("JSON")) => self.record.put_off(),
            Ok(_) => {}
            Err(failure) => self.record.failed(Kind::Gc, failure.message),
        }
    }

    /// Samples the daemon periodically, and once at the end.
    async fn samples(&self, period: Duration, end: Instant) -> Vec<Sample> {
        let (begin, mut seen, mut samples) = (Instant::now(), 0, Vec::new());
        loop {
            samples.push(Sample::take(self.server, begin.elapsed(), self.record.slowest_since(&mut seen)));
            let now = Instant::now();
            if now >= end {
                return samples;
            }
            tokio::time::sleep_until(end.min(now + period).into()).await;
        }
    }

    /// Runs all clients and the maintenance tasks concurrently.
    pub(super) async fn soak(&self, scale: &Scale, seed: u64) -> Vec<Sample> {
        let end = Instant::now() + scale.span;
        let random = |client: u64| StdRng::seed_from_u64(seed.wrapping_add(client));
        let clients = join_all((0..CLIENTS).map(|client| self.churn(random(client), end)));
        let lists = every(scale.list, end, async || {
            self.done(Kind::Tags, self.get("/api/tags")).await;
        });
        let collections = every(scale.collect, end, async || self.collect().await);
        let usages = every(scale.measure, end, async || {
            self.done(Kind::Du, self.get("/api/lode/du")).await;
        });
        let (_, (), (), (), samples) =
            tokio::join!(clients, lists, collections, usages, self.samples(scale.sample, end));
        samples
    }
}

/// Whether a collection was postponed because of concurrent operations.
pub(super) fn puts_off(collected: &Value) -> bool {
    !collected["put_off"].is_null()
}

/// Runs `work` at the end of each period, until the time is over. If it takes longer than a period,
/// the missed periods are skipped.
async fn every(period: Duration, end: Instant, mut work: impl AsyncFnMut()) {
    let mut due = Instant::now() + period;
    while due < end {
        tokio::time::sleep_until(due.into()).await;
        work().await;
        due = Instant::now().max(due + period);
    }
}
