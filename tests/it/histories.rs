//! Random histories: several clients change a daemon's names concurrently, the daemon is killed now
//! and then, and its list of models must be consistent with the acknowledged operations.
//!
//! A seed determines a history: four clients with a random generator each, and a conductor. The
//! conductor checks the store while all clients are paused, kills the daemon during their work, and
//! restarts it on the same store. `model` computes the possible values of a name, and `check`
//! asserts the invariants of an idle daemon.
//!
//! The test runs two seeds. With `LODE_CAMPAIGN_SECONDS` it runs seed after seed for that time,
//! from `LODE_CAMPAIGN_SEED` (default 1). A failure prints its seed, which `LODE_CAMPAIGN_SEED=n`
//! repeats. The order of concurrent requests depends on the machine, so a rare failure may need
//! several attempts.

mod campaign;
mod check;
mod client;
mod kind;
mod model;
mod request;
mod tally;

use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{number, say, variant};
use tally::Tally;

/// The number of models to create from.
const SOURCES: u8 = 6;
/// The number of seeds without `LODE_CAMPAIGN_SECONDS`.
const SEEDS: u64 = 2;
/// The time limit of a seed, so that a hang fails the test.
const PATIENCE: Duration = Duration::from_mins(10);

#[tokio::test]
async fn clients_and_kills_leave_what_was_acknowledged() {
    let first = number("LODE_CAMPAIGN_SEED").unwrap_or(1);
    let span = number("LODE_CAMPAIGN_SECONDS").map(Duration::from_secs);
    let sources: Vec<TempDir> = (0..SOURCES).map(variant).collect();
    let (begin, mut all, mut seeds) = (Instant::now(), Tally::default(), 0);
    while span.map_or(seeds < SEEDS, |span| begin.elapsed() < span) {
        let seed = Seed(first + seeds);
        let done = tokio::time::timeout(PATIENCE, campaign::run(seed.0, &sources)).await;
        let done = done.unwrap_or_else(|_| panic!("seed {} has not ended after {PATIENCE:?}", seed.0));
        say(&format!("seed {}: {done}", seed.0));
        all.add(&done);
        seeds += 1;
    }
    assert!(seeds > 0, "LODE_CAMPAIGN_SECONDS leaves no time for a seed");
    say(&format!("{seeds} seeds in {} s\n{}", begin.elapsed().as_secs(), all.table()));
}

/// The seed that is running. If it fails, its destructor prints how to repeat it.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("seed {} failed: LODE_CAMPAIGN_SEED={} begins with it", self.0, self.0));
        }
    }
}
