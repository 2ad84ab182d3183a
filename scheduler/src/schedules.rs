//! Fake runners for testing the order of tasks. A process is a task that ends by itself or is
//! killed; loads take some time and fail now and then. Time passes only while the scheduler waits
//! for it, so slow tasks miss their deadlines.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use protocol::{ContextRequest, FailureKind, KvType, LoadReply, LoadRequest, Status};
use shuttle::future::{JoinHandle, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use tokio::sync::watch;

use crate::load_plan::{BlobSource, Blobs};
use crate::machine::{End, Moment};
use crate::{Error, Runner, RunnerOptions};

/// A clock that advances when a task waits for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn now(&self) -> Moment {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    pub(crate) async fn wait_until(&self, moment: Moment) {
        pause(16).await;
        self.0.fetch_max(u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

/// Yields to other tasks, a random number of times up to `most`.
pub(crate) async fn pause(most: u32) {
    for _ in 0..thread_rng().gen_range(0..=most) {
        yield_now().await;
    }
}

#[derive(Debug)]
pub(crate) struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn begin(&mut self, life: impl Future<Output = ()> + Send + 'static) {
        self.0.push(spawn(life));
    }

    pub(crate) fn tidy(&mut self) {
        self.0.retain(|task| !task.is_finished());
    }

    pub(crate) fn take(&mut self) -> Self {
        Self(std::mem::take(&mut self.0))
    }

    pub(crate) async fn ended(self) {
        for task in self.0 {
            task.await.expect("no supervisor panics");
        }
    }
}

/// Number of processes that have not ended.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// A fake process.
#[derive(Debug)]
pub(crate) struct Process {
    ended: watch::Sender<Option<String>>,
    is_gone: bool,
}

impl Process {
    pub(crate) fn start(options: &RunnerOptions, _blobs: Arc<dyn BlobSource>) -> Result<(Self, Runner), Error> {
        if thread_rng().gen_ratio(1, 12) {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(Error::Start { program: options.program.clone(), source: Arc::new(source) });
        }
        let (ended, watched) = watch::channel(None);
        RUNNING.fetch_add(1, Ordering::SeqCst);
        if thread_rng().gen_ratio(1, 4) {
            // It ends by itself at a random moment.
            let ended = ended.clone();
            drop(spawn(async move {
                pause(40).await;
                ended.send_if_modified(|end| end.is_none() && end.replace("it crashed".to_owned()).is_none());
            }));
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let pid = u32::try_from(NEXT.fetch_add(1, Ordering::SeqCst)).unwrap_or(u32::MAX);
        Ok((Self { ended, is_gone: false }, Runner::new(PathBuf::from("/nowhere"), pid, watched)?))
    }

    /// Returns the number of processes that have not ended.
    pub(crate) fn running() -> u64 {
        RUNNING.load(Ordering::SeqCst)
    }

    pub(crate) fn forget_all() {
        RUNNING.store(0, Ordering::SeqCst);
    }

    #[expect(clippy::unused_self, reason = "a real one has it")]
    pub(crate) fn files(&self) -> Result<UnixStream, Error> {
        UnixStream::pair().map(|(own, _)| own).map_err(|error| Error::Protocol(error.to_string()))
    }

    pub(crate) async fn wait(&mut self) -> End {
        let mut ended = self.ended.subscribe();
        let end = ended.wait_for(Option::is_some).await.expect("this has the sender").clone();
        self.is_gone();
        End::Other(end.unwrap_or_default())
    }

    pub(crate) async fn wait_for(&mut self, _: Duration) -> Option<End> {
        pause(4).await;
        let end = self.ended.borrow().clone()?;
        self.is_gone();
        Some(End::Other(end))
    }

    pub(crate) async fn give_up(&mut self, reason: String) -> End {
        pause(4).await;
        self.ended.send_replace(Some(reason.clone()));
        self.is_gone();
        End::Other(reason)
    }

    pub(crate) async fn kill(&mut self) -> End {
        self.give_up("it was killed".to_owned()).await
    }

    fn is_gone(&mut self) {
        if !std::mem::replace(&mut self.is_gone, true) {
            RUNNING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Mirrors the real process, which is killed when it is dropped.
        self.is_gone();
    }
}

pub(crate) async fn reap(_: &[u32]) {
    yield_now().await;
}

pub(crate) async fn pass(_: UnixStream, _: Option<OwnedFd>, _: Blobs) -> Result<(), Error> {
    pause(2).await;
    if thread_rng().gen_ratio(1, 20) { Err(Error::Protocol("a file cannot be passed".to_owned())) } else { Ok(()) }
}

impl Runner {
    pub(crate) async fn wait_until_it_serves(&self) -> Result<Status, Error> {
        pause(4).await;
        self.lives()?;
        Ok(Status {
            model: None,
            active: 0,
            computing: None,
            helpers: Vec::new(),
            is_for_cpu: true,
            private: 0,
            pid: self.pid(),
        })
    }

    pub(crate) async fn load(&self, request: &LoadRequest) -> Result<LoadReply, Error> {
        self.work(request.context, request.slots).await
    }

    pub(crate) async fn rebuild(&self, request: &ContextRequest) -> Result<LoadReply, Error> {
        self.work(request.context, request.slots).await
    }

    async fn work(&self, context: u64, slots: u64) -> Result<LoadReply, Error> {
        pause(24).await;
        self.lives()?;
        let refused = |kind| Error::Refused { kind, message: "it was refused".to_owned() };
        match thread_rng().gen_range(0..12) {
            0 => Err(refused(FailureKind::OutOfMemory)),
            1 => Err(refused(FailureKind::Unsupported)),
            _ => Ok(LoadReply {
                device: "cpu".to_owned(),
                device_note: String::new(),
                context,
                slots,
                kv_type: KvType::F16,
                weights: 1,
                kv_cache: 1,
                on_devices: 0,
                private: 1,
            }),
        }
    }

    fn lives(&self) -> Result<(), Error> {
        self.ended().map_or(Ok(()), |end| Err(Error::Died(end)))
    }
}

#[cfg(test)]
mod tests;
