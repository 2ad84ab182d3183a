//! The work of a create, for its job.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use api::ollama::CreateRequest;
use build::{CreateSpec, Created, Source};
use content::operation::{ErrorClass, OperationError, RemoteClass, Unclassified};
use content::{Amount, Digest, Observer, text};

use super::pull_base;
use crate::create_request::spec_of;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::jobs::Job;
use crate::uploads;

/// Number of bytes between two progress lines.
const STEP: u64 = 16 << 20;

/// Creates the model of a job. If its base model is missing, pulls it first.
pub(super) async fn run(daemon: &Daemon, job: &Arc<Job>, request: &CreateRequest) -> Result<(), Failed> {
    let spec = match job.spec() {
        Some(spec) => spec,
        // The caller's permissions were checked at the request.
        None => Arc::new(spec_of(daemon, request.clone(), Caller::Trusted).await?),
    };
    if let Some(base) = missing(daemon, &spec, request.from.clone()).await? {
        pull_base(daemon, job, &base).await.map_err(|error| absent(base, error))?;
    }
    let created = create_on_thread(daemon, job, &spec).await?;
    job.feed().status(summary(&created));
    Ok(())
}

/// Creates a model on a thread, which ends soon after this is dropped.
async fn create_on_thread(
    daemon: &Daemon,
    job: &Arc<Job>,
    spec: &Arc<CreateSpec>,
) -> content::operation::Result<Created> {
    let step = if spec.quantize.is_some() { "quantizing tensors" } else { "importing tensors" };
    let only_thread = job.only_thread().await;
    let turn = daemon.long_tasks.turn().await.map_err(|failed| OperationError::text(failed.message))?;
    let (sent, collections) = (uploaded_blobs(spec), daemon.collections.clone());
    let is_wanted = Arc::new(());
    let reporter = Reporter { job: job.clone(), step, told: AtomicU64::new(0), wanted: Arc::downgrade(&is_wanted) };
    let (library, spec) = (daemon.library.clone(), spec.clone());
    let work = turn.run(move || {
        let work = std::panic::AssertUnwindSafe(|| build::create(&library, &spec, &reporter));
        let result =
            std::panic::catch_unwind(work).unwrap_or_else(|_| Err(OperationError::text("the create panicked")));
        if result.is_ok() {
            uploads::used(&library, &sent);
            library.collect();
        }
        drop(only_thread);
        (result, sent.is_empty())
    });
    let (result, without_uploads) = work.await.internal()?;
    if result.is_ok() && !without_uploads {
        collections.after(uploads::AFTERWARDS, &daemon.library);
    }
    drop(is_wanted);
    result
}

/// Returns the digests of the uploaded blobs: files of the model and of its adapters.
fn uploaded_blobs(spec: &CreateSpec) -> Vec<Digest> {
    let files = if let Source::Files(files) = &spec.source { &files[..] } else { &[] };
    files.iter().chain(&spec.adapters).filter_map(|file| file.source.digest()).collect()
}

/// Reports that the base model does not exist, if it was not found. A later failure, such as a blob
/// with wrong content or a full disk, is not reported as a wrong name.
fn absent(name: String, error: OperationError) -> OperationError {
    use RemoteClass::{NoAccess, NotFound, Unreachable};
    if !matches!(error.class(), ErrorClass::Remote(NotFound | NoAccess | Unreachable)) {
        return error.context(format!("pulling `{name}`, which the model is made from"));
    }
    library::Error::Absent { name, reason: error.with_causes() }.into()
}

/// Returns the name of the base model if it is not in the store.
async fn missing(
    daemon: &Daemon,
    spec: &CreateSpec,
    base: Option<String>,
) -> content::operation::Result<Option<String>> {
    let (Source::Model(name), Some(base)) = (&spec.source, base) else { return Ok(None) };
    let (library, name) = (daemon.library.clone(), name.clone());
    let found = tokio::task::spawn_blocking(move || library.find(&name)).await.internal()?;
    match found {
        Err(error) if error.class() == ErrorClass::NotFound => Ok(Some(base)),
        _ => Ok(None),
    }
}

/// Summarizes how many blobs are new and how many are shared.
fn summary(created: &Created) -> String {
    let Created { new, shared } = created;
    let size = |amount: &Amount| text::size(amount.bytes);
    match new.blobs {
        0 => {
            format!("all {} tensor blobs ({}) were there already; nothing was written", shared.blobs, size(shared))
        }
        _ => format!(
            "{} tensor blobs ({}) are new, {} ({}) are shared",
            new.blobs,
            size(new),
            shared.blobs,
            size(shared)
        ),
    }
}

/// Reports the progress of a create.
struct Reporter {
    job: Arc<Job>,
    /// The status text of lines that count bytes.
    step: &'static str,
    /// Number of bytes that was last reported.
    told: AtomicU64,
    /// Exists while the job waits for the create.
    wanted: Weak<()>,
}

impl Observer for Reporter {
    fn status(&self, status: String) {
        self.job.feed().status(status);
    }

    fn bytes(&self, done: u64, total: u64) {
        let told = self.told.load(Ordering::Relaxed);
        let due = done == total || done >= told + STEP;
        // Several workers call this; only one of them sends the line.
        if due && self.told.compare_exchange(told, done, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.job.feed().bytes(self.step.to_owned(), done, total);
        }
    }

    fn goes_on(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}
