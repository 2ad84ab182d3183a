//! Pulls, pushes and creates as jobs of the daemon.
//!
//! ```text
//! request ──▶ same job unfinished? ──▶ follow it
//!                     └─ no ─▶ record in the store ──▶ task ──▶ lines for each client
//! restart ──▶ records ──▶ task
//! ```
//!
//! A job goes on when its client disconnects, and after a restart of the daemon. It can be paused,
//! resumed and cancelled, and its rate limit and priority can be changed while it runs.

mod feed;
mod job;
mod job_work;
mod record;
mod watcher;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use api::lode::{JobEntry, JobPriority};
use axum::http::StatusCode;
use build::CreateSpec;
use library::Library;
use registry::client::Bandwidth;

use crate::error::Failed;
use job::Phase;
use record::{JobRecord, Records};

pub(crate) use feed::Feed;
pub(crate) use job::{Job, JobFailure, JobRunner};
pub(crate) use job_work::JobWork;
pub(crate) use watcher::Watcher;

/// Number of ended jobs that are kept for the list.
const ENDED: usize = 100;
/// How often a job of an earlier daemon is tried again if a server cannot be reached: for about ten
/// minutes.
const RETRIES: u32 = 7;

/// The jobs of the daemon. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Jobs(Arc<JobList>);

#[derive(Debug)]
struct JobList {
    /// `None` for a read-only store.
    records: Option<Records>,
    bandwidth: Bandwidth,
    /// The highest number that a job had.
    highest: AtomicU64,
    jobs: Mutex<BTreeMap<u64, Arc<Job>>>,
}

/// Settings of a job that a request may have.
#[derive(Debug, Default)]
pub(crate) struct JobOptions {
    /// Limit in bytes per second; 0 is none.
    pub(crate) limit: Option<u64>,
    pub(crate) priority: Option<JobPriority>,
    /// The specification of a create.
    pub(crate) spec: Option<CreateSpec>,
}

impl Jobs {
    pub(crate) fn new(library: &Library, bandwidth: &Bandwidth) -> Self {
        let records = (!library.is_read_only()).then(|| Records::of_store(library.home()));
        let highest = AtomicU64::new(records.as_ref().map_or(0, Records::highest));
        Self(Arc::new(JobList { records, bandwidth: bandwidth.clone(), highest, jobs: Mutex::default() }))
    }

    /// Goes on with the unfinished jobs of an earlier daemon. They are tried several times, because
    /// the network may not be there yet.
    pub(crate) fn restore(&self, runner: &JobRunner) {
        for record in self.0.records.iter().flat_map(Records::read) {
            let lost = record.work.lost_reason().map(str::to_owned);
            let record = JobRecord { failure: record.failure.or(lost), ..record };
            let job = Arc::new(Job::new(&record, None, &self.0.bandwidth, self.0.records.clone()));
            self.jobs().insert(job.id, job.clone());
            let model = job.work().model();
            if let Some(reason) = &record.failure {
                tracing::warn!(job = job.id, model, "a job has failed: {reason}");
            } else if !record.is_paused {
                tracing::info!(job = job.id, model, "going on with a job");
                // A job that is paused can begin.
                let _ = job.begin_with(runner, RETRIES);
            }
        }
    }

    /// Stops all jobs, because the daemon stops; they go on with the next one.
    pub(crate) async fn halt(&self) {
        let jobs: Vec<Arc<Job>> = self.jobs().values().cloned().collect();
        for job in jobs {
            job.halt().await;
        }
    }

    /// Starts a job, or joins the unfinished or failed job that does the same. Returns a watcher
    /// that misses no line.
    pub(crate) fn request(&self, work: JobWork, options: JobOptions, runner: &JobRunner) -> Watcher {
        let JobOptions { limit, priority, spec } = options;
        let (job, watcher, older) = self.same_or_new(work, spec);
        // The later request decides what the name means.
        for older in older {
            tracing::info!(job = older.id, "cancelled: its name was requested for another model");
            // It may have ended meanwhile.
            let _ = older.cancel();
        }
        // If the job has ended meanwhile, the watcher tells how.
        let _ = job.begin(runner);
        job.change(limit, priority);
        watcher
    }

    /// Returns the unfinished or failed job that does the same, or else a new one, a watcher of it,
    /// and the jobs that the new one replaces.
    fn same_or_new(&self, work: JobWork, spec: Option<CreateSpec>) -> (Arc<Job>, Watcher, Vec<Arc<Job>>) {
        let mut jobs = self.jobs();
        let may_go_on = |job: &Job| !matches!(*job.phase.borrow(), Phase::Done | Phase::Cancelled);
        let same = jobs.values().find(|job| may_go_on(job) && *job.work() == work).cloned();
        if let Some(same) = same {
            same.renew(spec);
            let watcher = Watcher::of(&same);
            return (same, watcher, Vec::new());
        }
        let is_older = |job: &&Arc<Job>| job.is_unwatched() && job.work().local_name() == work.local_name();
        let older: Vec<Arc<Job>> = jobs.values().filter(is_older).cloned().collect();
        let job = self.created(work, spec);
        // Before others see the job, because a job without a watcher can be replaced.
        let watcher = Watcher::of(&job);
        jobs.insert(job.id, job.clone());
        forget_ended(&mut jobs);
        (job, watcher, older)
    }

    fn created(&self, work: JobWork, spec: Option<CreateSpec>) -> Arc<Job> {
        let id = self.0.highest.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(records) = &self.0.records {
            records.count(id);
        }
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let record = JobRecord::new(id, work, created);
        Arc::new(Job::new(&record, spec.map(Arc::new), &self.0.bandwidth, self.0.records.clone()))
    }

    /// Follows a running pull whose model name satisfies a condition.
    pub(crate) fn running_pull(&self, is_wanted: impl Fn(&str) -> bool) -> Option<Watcher> {
        let is_pull = |job: &Arc<Job>| match job.work() {
            JobWork::Pull(request) => matches!(*job.phase.borrow(), Phase::Running) && is_wanted(&request.model),
            JobWork::Push(_) | JobWork::Create(_) => false,
        };
        let jobs = self.jobs();
        jobs.values().find(|job| is_pull(job)).map(Watcher::of)
    }

    /// Finds a job by its number.
    ///
    /// # Errors
    /// 404 if there is no such job.
    pub(crate) fn find(&self, id: u64) -> Result<Arc<Job>, Failed> {
        let found = self.jobs().get(&id).cloned();
        found.ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, format!("there is no job {id}; `lode jobs` lists them")))
    }

    /// Describes all jobs.
    pub(crate) fn list(&self) -> Vec<JobEntry> {
        let jobs: Vec<Arc<Job>> = self.jobs().values().cloned().collect();
        jobs.iter().map(|job| job.entry()).collect()
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Job>>> {
        // The map is valid after each operation, so a poisoned lock is safe.
        self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the oldest ended jobs, beyond the number that is kept.
fn forget_ended(jobs: &mut BTreeMap<u64, Arc<Job>>) {
    let ended: Vec<Arc<Job>> = jobs.values().filter(|job| !job.phase.borrow().is_unfinished()).cloned().collect();
    for job in &ended[..ended.len().saturating_sub(ENDED)] {
        jobs.remove(&job.id);
        // Removes the record of a job that has failed. Others have none.
        let _ = job.cancel();
    }
}
