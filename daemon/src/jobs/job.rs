//! One job: its state, and the task that does its work.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::lode::{JobEntry, JobPriority, JobState};
use axum::http::StatusCode;
use build::CreateSpec;
use content::operation::{ErrorClass, OperationError, RemoteClass};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use registry::client::{Bandwidth, Pace, Urgency};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use tokio::task::JoinHandle;

use super::feed::{Feed, Reading};
use super::job_work::JobWork;
use super::record::{JobRecord, Records};
use crate::error::Failed;
use crate::model_documents::timestamp;

/// The pause before a restored job is tried again; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// A pull, a push or a create.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) id: u64,
    work: JobWork,
    /// The specification of a create: from its request to its end, unless the daemon is restarted.
    /// It keeps files open.
    spec: Mutex<Option<Arc<CreateSpec>>>,
    pace: Pace,
    feed: Feed,
    pub(super) phase: watch::Sender<Phase>,
    created: SystemTime,
    /// The last task that does the work. The phase and the record change only while this is locked.
    task: Mutex<Option<JoinHandle<()>>>,
    /// Held by work on a thread, which ends a little after its task.
    thread: Arc<AsyncMutex<()>>,
    /// `None` for a read-only store.
    records: Option<Records>,
}

/// Starts the task of a job.
pub(crate) type JobRunner = Arc<dyn Fn(Arc<Job>) -> BoxFuture<'static, Result<(), JobFailure>> + Send + Sync>;

/// Why an attempt has failed.
#[derive(Debug)]
pub(crate) struct JobFailure {
    failed: Failed,
    /// Whether a server could not be reached, which may pass.
    is_passing: bool,
}

impl From<OperationError> for JobFailure {
    fn from(error: OperationError) -> Self {
        let is_passing = matches!(error.class(), ErrorClass::Remote(RemoteClass::Unreachable));
        Self { failed: error.into(), is_passing }
    }
}

impl From<Failed> for JobFailure {
    fn from(failed: Failed) -> Self {
        Self { failed, is_passing: false }
    }
}

/// Whether a job runs, and how it ended.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    Running,
    Paused,
    Done,
    Failed(Failed),
    Cancelled,
}

impl Phase {
    pub(super) fn is_unfinished(&self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }

    fn state(&self) -> JobState {
        match self {
            Self::Running => JobState::Running,
            Self::Paused => JobState::Paused,
            Self::Done => JobState::Done,
            Self::Failed(_) => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
        }
    }
}

impl Job {
    /// Creates a job that does not run yet.
    pub(super) fn new(
        record: &JobRecord,
        spec: Option<Arc<CreateSpec>>,
        bandwidth: &Bandwidth,
        records: Option<Records>,
    ) -> Self {
        let pace = Pace::new(bandwidth);
        pace.set_limit(record.limit);
        pace.set_urgency(urgency(record.priority));
        Self {
            id: record.id,
            work: record.work.clone(),
            spec: Mutex::new(spec),
            pace,
            feed: Feed::default(),
            phase: watch::Sender::new(match &record.failure {
                Some(reason) => Phase::Failed(Failed::new(StatusCode::INTERNAL_SERVER_ERROR, reason)),
                None => Phase::Paused,
            }),
            created: UNIX_EPOCH + Duration::from_secs(record.created),
            task: Mutex::default(),
            thread: Arc::default(),
            records,
        }
    }

    /// The request that the job carries out.
    pub(crate) fn work(&self) -> &JobWork {
        &self.work
    }

    /// The specification of a create; `None` if the daemon was restarted since its request.
    pub(crate) fn spec(&self) -> Option<Arc<CreateSpec>> {
        self.spec.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The rate limit and the priority.
    pub(crate) fn pace(&self) -> Pace {
        self.pace.clone()
    }

    /// The progress.
    pub(crate) fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Describes the job for clients.
    pub(crate) fn entry(&self) -> JobEntry {
        let Reading { status, total, completed, rate } = self.feed.reading();
        let phase = self.phase.borrow().clone();
        let (state, error) = match &phase {
            Phase::Failed(failed) => (phase.state(), Some(failed.message.clone())),
            _ => (phase.state(), None),
        };
        JobEntry {
            id: self.id,
            kind: self.work.kind(),
            model: self.work.model().to_owned(),
            destination: self.work.destination().map(str::to_owned),
            state,
            status,
            total,
            completed: if state == JobState::Done { total } else { completed },
            rate: if state == JobState::Running { rate } else { 0 },
            limit: self.pace.limit(),
            priority: priority(self.pace.urgency()),
            created: timestamp(self.created),
            error,
        }
    }

    /// Starts the work, unless it runs already.
    ///
    /// # Errors
    /// The job has succeeded or was cancelled, or cannot go on after a restart of the daemon.
    pub(crate) fn begin(self: &Arc<Self>, runner: &JobRunner) -> Result<(), Failed> {
        self.begin_with(runner, 0)
    }

    /// [`Job::begin`]; tries again `retries` times if a server cannot be reached.
    pub(super) fn begin_with(self: &Arc<Self>, runner: &JobRunner, retries: u32) -> Result<(), Failed> {
        let mut task = self.lock();
        let phase = self.phase.borrow().clone();
        match phase {
            Phase::Running => return Ok(()),
            Phase::Done | Phase::Cancelled => return Err(self.ended(&phase)),
            Phase::Paused | Phase::Failed(_) => {}
        }
        if let Some(reason) = self.lost_reason() {
            return Err(Failed::new(StatusCode::CONFLICT, reason));
        }
        self.feed.clear();
        self.phase.send_replace(Phase::Running);
        self.save();
        let (job, runner, earlier) = (self.clone(), runner.clone(), task.take());
        *task = Some(tokio::spawn(async move {
            if let Some(earlier) = earlier {
                // It was stopped, or has ended.
                let _ = earlier.await;
            }
            let result = job.tried(&runner, retries).await;
            job.finish(result);
        }));
        Ok(())
    }

    /// Does the work, and tries again if a server cannot be reached, with growing pauses.
    async fn tried(self: &Arc<Self>, runner: &JobRunner, retries: u32) -> Result<(), Failed> {
        let (mut left, mut pause) = (retries, FIRST_PAUSE);
        loop {
            let result = AssertUnwindSafe(runner(self.clone())).catch_unwind().await;
            let panicked = |_| Err(OperationError::text("the job panicked; the daemon's log says why").into());
            match result.unwrap_or_else(panicked) {
                Err(JobFailure { failed, is_passing: true }) if left > 0 => {
                    let seconds = pause.as_secs();
                    self.feed.status(format!("{}; trying again in {seconds} s", failed.message));
                    tokio::time::sleep(pause).await;
                    left -= 1;
                    pause *= 2;
                }
                result => return result.map_err(|failure| failure.failed),
            }
        }
    }

    /// Stops the work; it can be resumed.
    ///
    /// # Errors
    /// The job has ended.
    pub(crate) fn pause(&self) -> Result<(), Failed> {
        let task = self.lock();
        let phase = self.phase.borrow().clone();
        if !phase.is_unfinished() {
            return Err(self.ended(&phase));
        }
        self.phase.send_replace(Phase::Paused);
        stop(task.as_ref());
        self.feed.status(format!("paused; `lode resume {}` goes on", self.id));
        self.save();
        Ok(())
    }

    /// Ends the job, or dismisses one that has failed. Transferred blobs are kept for a later
    /// attempt.
    ///
    /// # Errors
    /// The job has succeeded or was cancelled.
    pub(crate) fn cancel(&self) -> Result<(), Failed> {
        let task = self.lock();
        let phase = self.phase.borrow().clone();
        if matches!(phase, Phase::Done | Phase::Cancelled) {
            return Err(self.ended(&phase));
        }
        self.phase.send_replace(Phase::Cancelled);
        stop(task.as_ref());
        self.forget();
        Ok(())
    }

    /// Whether the job is unfinished, gives a name to a model, and no client follows it.
    pub(super) fn is_unwatched(&self) -> bool {
        let is_unfinished = self.phase.borrow().is_unfinished();
        is_unfinished && self.work.local_name().is_some() && self.phase.receiver_count() == 0
    }

    /// Stops the task without a change of the record, because the daemon stops.
    pub(super) async fn halt(&self) {
        let task = self.lock().take();
        if let Some(task) = task {
            task.abort();
            // It was stopped, or has ended.
            let _ = task.await;
        }
    }

    /// Changes the limit in bytes per second and the priority. A limit of 0 is none.
    pub(crate) fn change(&self, limit: Option<u64>, priority: Option<JobPriority>) {
        let _task = self.lock();
        if let Some(limit) = limit {
            self.pace.set_limit(Some(limit).filter(|limit| *limit > 0));
        }
        if let Some(priority) = priority {
            self.pace.set_urgency(urgency(priority));
        }
        let is_kept = !matches!(*self.phase.borrow(), Phase::Done | Phase::Cancelled);
        if is_kept && (limit.is_some() || priority.is_some()) {
            self.save();
        }
    }

    /// Gives a failed create the files of a new request.
    pub(super) fn renew(&self, spec: Option<CreateSpec>) {
        if let Some(spec) = spec {
            *self.spec.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(spec));
        }
    }

    /// Why the job cannot go on; `None` if it can.
    pub(super) fn lost_reason(&self) -> Option<&'static str> {
        self.work.lost_reason().filter(|_| self.spec().is_none())
    }

    /// Waits until no thread works for this job, and keeps others away.
    pub(crate) async fn only_thread(&self) -> OwnedMutexGuard<()> {
        self.thread.clone().lock_owned().await
    }

    fn finish(&self, result: Result<(), Failed>) {
        let _task = self.lock();
        if !matches!(*self.phase.borrow(), Phase::Running) {
            return;
        }
        // The record goes first: a client that learns of the end may restart the daemon.
        match result {
            Ok(()) => {
                self.forget();
                self.phase.send_replace(Phase::Done);
            }
            Err(failed) => {
                self.write(Some(failed.message.clone()));
                self.phase.send_replace(Phase::Failed(failed));
            }
        }
    }

    /// Removes the record and closes the files, which only an unfinished or failed job needs.
    fn forget(&self) {
        if let Some(records) = &self.records {
            records.remove(self.id);
        }
        self.spec.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Writes the record, from which the job goes on after a restart of the daemon.
    fn save(&self) {
        let failure = match &*self.phase.borrow() {
            Phase::Failed(failed) => Some(failed.message.clone()),
            _ => None,
        };
        self.write(failure);
    }

    fn write(&self, failure: Option<String>) {
        let Some(records) = &self.records else { return };
        let created = self.created.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        records.write(&JobRecord {
            is_paused: matches!(*self.phase.borrow(), Phase::Paused),
            failure,
            limit: self.pace.limit(),
            priority: priority(self.pace.urgency()),
            ..JobRecord::new(self.id, self.work.clone(), created)
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        // The phase and the record are valid after each step, so a poisoned lock is safe.
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, phase: &Phase) -> Failed {
        let how = match phase {
            Phase::Cancelled => "was cancelled",
            _ => "has ended",
        };
        Failed::new(StatusCode::CONFLICT, format!("job {} {how}; send the request again", self.id))
    }
}

/// Stops a task. The next one waits for its end.
fn stop(task: Option<&JoinHandle<()>>) {
    if let Some(task) = task {
        task.abort();
    }
}

fn urgency(priority: JobPriority) -> Urgency {
    match priority {
        JobPriority::Low => Urgency::Low,
        JobPriority::Normal => Urgency::Normal,
        JobPriority::High => Urgency::High,
    }
}

fn priority(urgency: Urgency) -> JobPriority {
    match urgency {
        Urgency::Low => JobPriority::Low,
        Urgency::Normal => JobPriority::Normal,
        Urgency::High => JobPriority::High,
    }
}
