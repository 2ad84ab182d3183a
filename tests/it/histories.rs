//! Histories: several clients change the names of a daemon at once, the daemon is killed now and then, and what it
//! lists afterwards must be explained by what it has acknowledged.
//!
//! A history is drawn from a seed: four clients with a generator each, and a conductor that looks at the store while
//! everybody waits, kills the daemon in the middle of their work and starts it again on the same store. `model` says
//! what a name may name, `check` what must hold whenever nothing is under way.
//!
//! The test does two seeds. With `LODE_CAMPAIGN_SECONDS` it goes on from `LODE_CAMPAIGN_SEED` (1 where nothing is
//! said), seed after seed, until that time has gone. A failure tells its seed, and `LODE_CAMPAIGN_SEED=n` begins with
//! it; who comes first is the machine's choice, so that a rare failure may need more than one attempt.

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

/// How many models there are to create from.
const SOURCES: u8 = 6;
/// Seeds of the short form.
const SEEDS: u64 = 2;
/// No seed takes longer: whatever hangs ends the test.
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

/// The seed that is being run; one that fails says how it is repeated.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("seed {} failed: LODE_CAMPAIGN_SEED={} begins with it", self.0, self.0));
        }
    }
}
