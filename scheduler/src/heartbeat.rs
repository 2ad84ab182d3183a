//! Supervision of a running runner by polling its status.
//!
//! A process that is stopped, or whose server hangs, does not answer. A runner whose engine loops
//! still answers, but its progress counter stands still. The engine has ten times as long, because
//! a layer of a large model is slow on a small machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::Runner;

/// How many times longer than an answer of the process a single step of the engine may take.
const ENGINE: u32 = 10;

/// Returns once the runner has not answered for `patience`, or its engine has made no progress for
/// ten times that. The result describes which of the two happened.
pub(crate) async fn silence(runner: Arc<Runner>, patience: Duration) -> String {
    // Allows several attempts within `patience`: the daemon itself may be suspended during one of
    // them.
    let pause = patience / 4;
    let mut answered = Instant::now();
    let mut place: Option<(u64, Instant)> = None;
    loop {
        sleep(pause).await;
        let Ok(Ok(status)) = timeout(pause, runner.status()).await else {
            if answered.elapsed() >= patience {
                return format!("it did not answer for {} s", patience.as_secs_f32());
            }
            continue;
        };
        answered = Instant::now();
        place = status.computing.map(|computing| match place {
            Some((before, since)) if before == computing => (computing, since),
            _ => (computing, Instant::now()),
        });
        if let Some((_, since)) = place
            && since.elapsed() > patience.saturating_mul(ENGINE)
        {
            return format!("its engine made no progress for {} s", since.elapsed().as_secs());
        }
    }
}
