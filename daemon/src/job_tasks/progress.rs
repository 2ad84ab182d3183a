//! The progress of a transfer as lines of its job.

use std::sync::Arc;
use std::time::Duration;

use api::ollama::Progress;
use content::operation::Result;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use transfer::Meter;

use crate::jobs::Feed;

/// Time between two progress lines.
const TICK: Duration = Duration::from_millis(100);

/// Runs a transfer and reports its progress. `verb` begins the lines: `pulling` or `pushing`.
pub(super) async fn with_progress<T, F>(
    feed: &Feed,
    verb: &'static str,
    work: impl FnOnce(Arc<Meter>) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let (sender, statuses) = unbounded_channel();
    let meter = Arc::new(Meter::of_blobs(sender));
    let reporter = ProgressReporter { verb, feed, meter: meter.clone(), reported: 0 };
    reporter.run(statuses, work(meter)).await
}

/// Converts a transfer's progress to lines.
struct ProgressReporter<'a> {
    verb: &'static str,
    feed: &'a Feed,
    meter: Arc<Meter>,
    /// Number of bytes that was last reported.
    reported: u64,
}

impl ProgressReporter<'_> {
    async fn run<T>(
        mut self,
        mut statuses: UnboundedReceiver<String>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut work = std::pin::pin!(work);
        let mut ticks = tokio::time::interval(TICK);
        let result = loop {
            tokio::select! {
                biased;
                Some(status) = statuses.recv() => self.status(status),
                result = &mut work => break result,
                _ = ticks.tick() => {
                    while let Ok(status) = statuses.try_recv() {
                        self.status(status);
                    }
                    self.blobs();
                    self.bytes();
                }
            }
        };
        while let Ok(status) = statuses.try_recv() {
            self.status(status);
        }
        self.blobs();
        result
    }

    fn status(&mut self, status: String) {
        self.blobs();
        if self.meter.reading().0 > self.reported {
            self.bytes();
        }
        self.feed.status(status);
    }

    fn blobs(&self) {
        for blob in self.meter.blobs_that_moved() {
            self.feed.blob(Progress {
                // Ollama's name of a layer.
                status: format!("{} {}", self.verb, blob.digest.short()),
                digest: Some(blob.digest.to_string()),
                name: Some(blob.name),
                total: Some(blob.total),
                completed: Some(blob.completed),
                ..Progress::default()
            });
        }
    }

    fn bytes(&mut self) {
        let (completed, total) = self.meter.reading();
        if total == 0 || (completed == self.reported && completed != 0) {
            return;
        }
        self.reported = completed;
        self.feed.bytes(format!("{} model", self.verb), completed, total);
    }
}
