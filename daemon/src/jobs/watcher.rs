//! A client that follows a job: the response with its lines.

use std::sync::Arc;

use api::ollama::ErrorResponse;
use axum::Json;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::feed::FeedLine;
use super::job::{Job, Phase};
use crate::error::Failed;
use crate::stream::{Lines, lines};

/// The header with the number of the job that a request has started or joined.
const JOB: HeaderName = HeaderName::from_static("lode-job");

/// A client that follows a job. The job does not depend on it.
#[derive(Debug)]
pub(crate) struct Watcher {
    job: Arc<Job>,
    /// Lines that tell the present state.
    first: Vec<FeedLine>,
    later: Receiver<FeedLine>,
    phase: watch::Receiver<Phase>,
}

impl Watcher {
    /// Follows a job from now on.
    pub(crate) fn of(job: &Arc<Job>) -> Self {
        let (first, later) = job.feed().subscribe();
        Self { job: job.clone(), first, later, phase: job.phase.subscribe() }
    }

    /// Returns the response to a request: lines of progress, or one document at the end if `stream`
    /// is `Some(false)`. `blobs` asks for lines about single blobs.
    ///
    /// # Errors
    /// The job failed or was cancelled, and the response has no lines.
    pub(crate) async fn response(mut self, stream: Option<bool>, blobs: bool) -> Result<Response, Failed> {
        let number = HeaderValue::from(self.job.id);
        let mut response = if stream == Some(false) {
            self.end().await?;
            Json(self.job.work().success()).into_response()
        } else {
            let (lines, response) = lines();
            tokio::spawn(self.follow(lines, blobs));
            response
        };
        response.headers_mut().insert(JOB, number);
        Ok(response)
    }

    /// Waits for a line of the job or for its end. Returns `false` if it has ended.
    pub(crate) async fn has_news(&mut self) -> bool {
        tokio::select! {
            line = self.later.recv() => !matches!(line, Err(RecvError::Closed)),
            _ = self.phase.wait_for(|phase| !phase.is_unfinished()) => false,
        }
    }

    /// Waits for the end of the job.
    ///
    /// # Errors
    /// It failed or was cancelled.
    pub(crate) async fn end(&mut self) -> Result<(), Failed> {
        let ended = self.phase.wait_for(|phase| !phase.is_unfinished()).await.map(|phase| phase.clone());
        match ended {
            Ok(Phase::Failed(failed)) => Err(failed),
            Ok(Phase::Cancelled) => Err(self.cancelled()),
            // The sender belongs to the job, which exists.
            Ok(Phase::Done | Phase::Running | Phase::Paused) | Err(_) => Ok(()),
        }
    }

    fn cancelled(&self) -> Failed {
        Failed::bad_request(format!(
            "job {} was cancelled; transferred blobs are kept for a later attempt",
            self.job.id
        ))
    }

    /// Sends lines until the job ends or the client disconnects.
    async fn follow(mut self, lines: Lines, blobs: bool) {
        tokio::select! {
            () = self.tell(&lines, blobs) => {}
            () = lines.closed() => tracing::debug!(job = self.job.id, "a client is gone, the job goes on"),
        }
    }

    /// Sends the present state to a client that has missed lines.
    async fn tell_present(&mut self, lines: &Lines) {
        let (present, later) = self.job.feed().subscribe();
        self.later = later;
        for line in present {
            lines.send(&*line.progress).await;
        }
    }

    async fn tell(&mut self, lines: &Lines, blobs: bool) {
        let mut phase = self.phase.clone();
        // The guard of the phase must not be kept while lines are sent.
        let ended = async move { drop(phase.wait_for(|phase| !phase.is_unfinished()).await) };
        tokio::pin!(ended);
        let told = |line: &FeedLine| !line.is_of_blob || blobs;
        for line in std::mem::take(&mut self.first) {
            lines.send(&*line.progress).await;
        }
        loop {
            tokio::select! {
                // Lines first, so that none is left when the job has ended.
                biased;
                line = self.later.recv() => match line {
                    Ok(line) if told(&line) => drop(lines.send(&*line.progress).await),
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => self.tell_present(lines).await,
                    Err(RecvError::Closed) => break,
                },
                () = &mut ended => break,
            }
        }
        match self.end().await {
            Ok(()) => lines.send(&self.job.work().success()).await,
            Err(failed) => lines.send(&ErrorResponse { error: failed.message }).await,
        };
    }
}
