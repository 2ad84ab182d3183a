//! Whether a runner still works: it is asked again and again, and says what it has come to.
//!
//! A process that was stopped, or whose server hangs, does not answer. One whose engine loops answers, and has computed
//! nothing more: it has ten times as long, because a layer of a large model takes its time on a small machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::Runner;

/// How many times longer the engine may take for one thing than the process for an answer.
const ENGINE: u32 = 10;

/// Ends when the runner has been silent for `patience`, or its engine in one place for ten times that. Says which.
pub(crate) async fn silence(runner: Arc<Runner>, patience: Duration) -> String {
    // Several chances: the daemon itself may have been stopped in the middle of one.
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
            return format!("it computed one and the same for {} s", since.elapsed().as_secs());
        }
    }
}
