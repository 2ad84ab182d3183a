//! A soak test: many models are created and removed for a long time. The daemon's resource use does
//! not grow, and every request succeeds.
//!
//! `scripts/campaign soak` runs for an hour with 10,000 models, and asserts limits on memory. The
//! test here runs for seconds with few models, which is too short to measure memory, so it only
//! asserts that file descriptors are closed.

mod clients;
mod requests;
mod samples;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{list, number, say, variant};

use clients::{Clients, Models, base, name, puts_off};
use samples::{Growth, descriptors, growth, report};

/// The number of base models, which remain. All other models are created from them, and only they
/// generate.
const BASES: u64 = 5;
/// The limit of memory growth in the second half, in KiB per hour. It applies if memory grows by
/// more than a tenth in total.
const STEEPEST: f64 = 32.0 * 1024.0;
/// The longest wait for file descriptors to be closed.
const PATIENCE: Duration = Duration::from_mins(1);
/// A debug log of an hour would be larger than the store.
const ENVIRONMENT: [(&str, &str); 1] = [("LODE_LOG", "info")];

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The number of models, including the bases.
    models: u64,
    /// How long models are created and removed.
    span: Duration,
    /// The interval between samples.
    sample: Duration,
    /// The interval between lists of all models.
    list: Duration,
    /// The interval between collections.
    collect: Duration,
    /// The interval between calls of `du`.
    measure: Duration,
    /// How many more file descriptors may be open at the end than at the beginning.
    descriptors: usize,
    /// Whether memory limits are asserted; only if the run is long enough to show growth.
    is_campaign: bool,
}

impl Scale {
    fn chosen() -> Self {
        if let Some(seconds) = number("LODE_CAMPAIGN_SOAK") {
            return Self {
                models: number("LODE_CAMPAIGN_MODELS").unwrap_or(10_000),
                span: Duration::from_secs(seconds),
                sample: Duration::from_secs(10),
                list: Duration::from_secs(10),
                collect: Duration::from_secs(30),
                measure: Duration::from_mins(1),
                descriptors: 50,
                is_campaign: true,
            };
        }
        Self {
            models: 60,
            span: Duration::from_secs(6),
            sample: Duration::from_millis(500),
            list: Duration::from_millis(500),
            collect: Duration::from_secs(1),
            measure: Duration::from_secs(2),
            descriptors: 8,
            is_campaign: false,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_come_and_go_for_long() {
    let scale = Scale::chosen();
    let seed = number("LODE_CAMPAIGN_SEED").unwrap_or(1);
    say(&format!("{scale:?}, seed {seed}"));
    let (server, peer) = (Server::start(&ENVIRONMENT).await, Server::start(&ENVIRONMENT).await);
    for number in 0..BASES {
        let weights = variant(u8::try_from(number).expect("few bases"));
        server.create(&base(number), weights.path()).await;
    }
    let said = server.says(&base(0)).await;
    let models = Models::default();
    Clients::new(&server, &peer, &models).fill(scale.models.saturating_sub(BASES)).await;
    unload(&server).await;
    let before = resting_descriptors(&server).await;

    let clients = Clients::new(&server, &peer, &models);
    let samples = clients.soak(&scale, seed).await;
    let record = clients.into_record();
    say(&format!("{}\n{}", report(&samples), record.report()));

    let errors = record.errors();
    assert!(errors.is_empty(), "requests failed (seed {seed}): {errors:#?}");
    if scale.is_campaign {
        let Growth { slope, whole } = growth(&samples);
        let rests = slope.is_some_and(|slope| slope < STEEPEST) || whole < 0.1;
        assert!(rests, "memory grows: {slope:?} KiB an hour in the second half, by {:.1} % in all", whole * 100.0);
    }
    assert_named(&server, &peer, &models).await;
    assert_sound(&server).await;
    assert_eq!(server.says(&base(0)).await, said, "a model that was there all the time says something else");
    unload(&server).await;
    assert_closed(&server, before, scale.descriptors).await;
    for (who, daemon) in [("the daemon", &server), ("its peer", &peer)] {
        let log = daemon.log();
        let panicked = log.lines().find(|line| line.contains("panicked"));
        assert!(panicked.is_none(), "{who}: {panicked:?}");
    }
}

/// Unloads all bases.
async fn unload(server: &Server) {
    for number in 0..BASES {
        server.ask("/api/generate", &json!({"model": base(number), "keep_alive": 0, "stream": false})).await;
    }
}

/// Returns the number of the daemon's open file descriptors at rest. Connections and runners take a
/// moment to close.
async fn resting_descriptors(server: &Server) -> usize {
    let mut least = descriptors(server.pid());
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        least = least.min(descriptors(server.pid()));
    }
    least
}

/// Waits until at most `more` additional file descriptors are open.
async fn assert_closed(server: &Server, before: usize, more: usize) {
    let begin = Instant::now();
    let mut now = descriptors(server.pid());
    while now > before + more {
        assert!(begin.elapsed() < PATIENCE, "{before} descriptors were open before, {now} are afterwards");
        tokio::time::sleep(Duration::from_millis(50)).await;
        now = descriptors(server.pid());
    }
    say(&format!("descriptors at rest: {before} before, {now} afterwards"));
}

/// Asserts that exactly the expected models exist, and that the peer has no models left.
async fn assert_named(server: &Server, peer: &Server, models: &Models) {
    let found: BTreeSet<String> = server.names().await.into_iter().collect();
    let made: Vec<String> = models.here().iter().map(|number| name(*number)).collect();
    let expected: BTreeSet<String> = (0..BASES).map(base).chain(made).map(|name| format!("{name}:latest")).collect();
    let differ: Vec<&String> = expected.symmetric_difference(&found).take(10).collect();
    assert!(differ.is_empty(), "{} models, expected {}; they differ in {differ:?}", found.len(), expected.len());
    assert!(peer.names().await.is_empty());
}

/// Asserts that a collection removes all unreferenced blobs, and that fsck finds no damage.
async fn assert_sound(server: &Server) {
    let begin = Instant::now();
    let collected = server.ask("/api/lode/gc", &json!({})).await;
    say(&format!("a collection at rest took {:.1?}: {collected}", begin.elapsed()));
    assert!(!puts_off(&collected), "somebody still adds or reads: {collected}");
    let answer = server.http.get(server.url("/api/lode/du")).send().await.expect("the daemon answers");
    let usage: Value = answer.json().await.expect("JSON");
    assert_eq!(usage["unreferenced_bytes"], 0, "what nobody needs is gone");
    let begin = Instant::now();
    let lines = server.lines("/api/lode/fsck", &json!({"sample": {"count": 1000}})).await;
    let last = lines.last().expect("at least a line");
    assert_eq!(last["status"], "success", "{last}");
    assert!(list(&last["report"]["problems"]).is_empty(), "{last}");
    say(&format!("fsck of {} blobs took {:.1?}", last["report"]["blobs"], begin.elapsed()));
}
