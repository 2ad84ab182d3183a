//! The engine: one thread that owns all slots and computes for all of them together.
//!
//! A slot is a KV cache and at most one piece of work on it. The last slot is for embeddings and
//! rankings. Each step is one pass of the decoder: one token of every slot that decodes, and a
//! chunk of one slot that has more to compute, usually a prompt. So the weights are read once for
//! all slots, and a long prompt delays the other slots by at most one chunk.
//!
//! ```text
//! submit ──▶ waiting ──▶ slot: begin ──▶ feed ─▶ pass ─▶ take ──▶ finished
//!                              (choice)    ▲              │
//!                                          └──── more ────┘
//! ```
//!
//! # Invariants
//! - Work whose listener is gone ends before the next step, also between the chunks of a prompt.
//! - Work whose listener is slow is left out of steps; it delays no other work.
//! - The result of work does not depend on other work in the step, except for the rounding of float
//!   products in the reference mode and on GPUs.
//! - If a pass fails, all work that took part in it reports the failure.
//! - No result leaves the engine if a file outside of the store changed before it was computed. The
//!   process then ends: the next load verifies the file.

mod choice;
mod pass_rows;
mod slot;
mod thread;
mod work;

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::sync::oneshot;

use crate::cache::CacheShape;
use crate::decoder::Decoder;
use crate::mapped::SourceFiles;
use crate::text::model::Model;
pub(crate) use pass_rows::PassRows;
use thread::EngineThread;
pub(crate) use work::{Computed, Fault, Feed, Listener, Output, OutputKind, Work, WorkProgress, check_vocabulary};

/// The number of slots, and the size of their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Number of slots for conversations; at least one.
    pub(crate) count: usize,
    /// Size of each cache.
    pub(crate) shape: CacheShape,
}

/// Handle of the engine's thread, which ends and is joined when this value is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Work(Box<dyn Work>),
    Change(Change),
}

/// A request to replace all slots once no work runs.
struct Change {
    slots: Slots,
    done: oneshot::Sender<Result<()>>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if there is no memory for the slots.
    pub(crate) fn start(
        model: Arc<Model>,
        decoder: Arc<Decoder>,
        sources: Arc<SourceFiles>,
        slots: Slots,
    ) -> Result<Self> {
        let (jobs, inbox) = mpsc::channel();
        let mut engine = EngineThread::new(model, decoder, sources, slots, inbox)?;
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || while engine.step() {})?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues work. If the engine has ended, the work is dropped, which its listener notices.
    pub(crate) fn submit(&self, work: Box<dyn Work>) {
        self.send(Job::Work(work));
    }

    /// Replaces all slots once no work runs on them; queued work then begins on the new slots.
    ///
    /// # Errors
    /// Fails if there is no memory for the new slots, and keeps the old ones; or if the engine has
    /// ended.
    pub(crate) async fn change(&self, slots: Slots) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.send(Job::Change(Change { slots, done }));
        answer.await.context("the engine has ended")?
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // Sending fails only if the thread has ended; dropping the job closes the sender's
            // channel.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // All listeners have already noticed a panic of the thread.
            let _ = thread.join();
        }
    }
}
