//! The engine's thread: the steps, and the data that they change.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result};

use super::choice::{self, Candidate};
use super::pass_rows::PassRows;
use super::slot::{Slot, make};
use super::work::{Computed, Listener, Output, OutputKind, Work, guarded};
use super::{Change, Job, Slots};
use crate::backend::{Best, Sequence};
use crate::cache::common_prefix;
use crate::decoder::{Decoder, Logits};
use crate::mapped::SourceFiles;
use crate::picture_rows::{PictureRows, is_row};
use crate::text::model::Model;

/// Largest number of prompt tokens in a step while other slots decode and wait for the step.
const CHUNK_BESIDE: usize = 128;
/// Time between two checks whether slow listeners have caught up.
const PAUSE: Duration = Duration::from_millis(1);

/// Time in which the failures of the last pass are sent.
const LAST_ANSWERS: Duration = Duration::from_millis(100);

/// A slot takes over the prefix of another slot only if it gains at least this many tokens.
const SHARED: usize = 32;

/// The tokens that one slot feeds in a step.
struct Run {
    slot: usize,
    /// Number of tokens that it feeds.
    tokens: usize,
    /// Output that is needed for them.
    wanted: OutputKind,
    /// Whether they are all tokens that the work has to feed.
    all: bool,
    /// Index of its first token among the tokens of the pass.
    first: usize,
}

/// The slots and the queues of the engine, and the buffers of its passes.
pub(super) struct EngineThread {
    model: Arc<Model>,
    decoder: Arc<Decoder>,
    sources: Arc<SourceFiles>,
    /// Whether a source has changed, so that the process ends in a moment.
    is_ending: bool,
    inbox: Receiver<Job>,
    waiting: VecDeque<Box<dyn Work>>,
    changes: VecDeque<Change>,
    slots: Vec<Slot>,
    clock: u64,
    /// Slot at which the search for the next prompt begins: prompts take turns.
    next_slot: usize,
    /// The tokens of a pass.
    ids: Vec<u32>,
    /// The sequences of a pass.
    sequences: Vec<Sequence>,
    /// The pictures with rows in a pass.
    pictures: Vec<PictureRows>,
    /// Rows of logits of a pass, `[wanted, vocabulary]`.
    logits: Vec<f32>,
    /// For each run that needs logits after its last token, the selected candidates; `None` if it
    /// has a row of `logits`.
    best: Vec<Option<Best>>,
}

impl EngineThread {
    /// Creates the slots.
    ///
    /// # Errors
    /// Fails if there is no memory for them.
    pub(super) fn new(
        model: Arc<Model>,
        decoder: Arc<Decoder>,
        sources: Arc<SourceFiles>,
        slots: Slots,
        inbox: Receiver<Job>,
    ) -> Result<Self> {
        Ok(Self {
            slots: make(&decoder, slots)?,
            model,
            decoder,
            sources,
            is_ending: false,
            inbox,
            waiting: VecDeque::new(),
            changes: VecDeque::new(),
            clock: 0,
            next_slot: 0,
            ids: Vec::new(),
            sequences: Vec::new(),
            pictures: Vec::new(),
            logits: Vec::new(),
            best: Vec::new(),
        })
    }

    /// Runs one step. Returns `false` if the engine handle is gone and no work can proceed; work of
    /// slow listeners is then dropped.
    pub(super) fn step(&mut self) -> bool {
        if !self.is_busy() && self.waiting.is_empty() && self.changes.is_empty() {
            self.decoder.heartbeat().rest();
            match self.inbox.recv() {
                Ok(job) => self.accept(job),
                Err(_) => return false,
            }
        }
        self.decoder.heartbeat().beat();
        while let Ok(job) = self.inbox.try_recv() {
            self.accept(job);
        }
        self.retire();
        self.replace();
        self.assign();
        let long = self.prepare();
        let runs = self.select(long);
        if !runs.is_empty() {
            self.run(runs);
            self.decoder.forget();
        } else if self.is_busy() {
            return self.pause();
        }
        true
    }

    fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| slot.work.is_some())
    }

    /// Waits a moment while all listeners are behind. Returns `false` if the engine handle is gone.
    fn pause(&mut self) -> bool {
        self.decoder.heartbeat().rest();
        match self.inbox.recv_timeout(PAUSE) {
            Ok(job) => self.accept(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    fn accept(&mut self, job: Job) {
        match job {
            Job::Work(work) => self.waiting.push_back(work),
            Job::Change(change) => self.changes.push_back(change),
        }
    }

    /// Drops work whose listener is gone.
    fn retire(&mut self) {
        self.waiting.retain(|work| work.listener() != Listener::Gone);
        for slot in &mut self.slots {
            if let Some(work) = slot.work.take_if(|work| work.listener() == Listener::Gone) {
                slot.clear_if_useless(&*work);
            }
        }
    }

    /// Replaces the slots as requested, once no work runs.
    fn replace(&mut self) {
        if self.is_busy() {
            return;
        }
        for change in self.changes.drain(..) {
            let made = make(&self.decoder, change.slots).map(|slots| self.slots = slots);
            // The requester may be gone.
            let _ = change.done.send(made);
        }
    }

    /// Gives free slots to waiting work, in order of arrival. No work begins while slots are to be
    /// replaced.
    fn assign(&mut self) {
        while self.changes.is_empty() {
            let found = (0..self.waiting.len()).find_map(|at| Some((at, self.slot_for(&*self.waiting[at])?)));
            let Some((at, index)) = found else { return };
            let Some(mut work) = self.waiting.remove(at) else { return };
            self.clock += 1;
            self.slots[index].last_used = self.clock;
            if !work.needs_no_past() {
                self.slots[index].enter(work.domain());
                self.share(index, work.feed().tokens);
            }
            let slot = &mut self.slots[index];
            match guarded(|| work.begin(&self.model, &mut slot.cache)) {
                Ok(()) => slot.work = Some(work),
                Err(fault) => {
                    slot.clear_if_useless(&*work);
                    work.fail(fault);
                }
            }
        }
    }

    /// Returns the free slot for work. Embeddings and rankings use the last slot, one at a time, so
    /// that they neither delay a conversation nor leave tokens in its cache.
    fn slot_for(&self, work: &dyn Work) -> Option<usize> {
        let (last, conversations) = self.slots.split_last()?;
        if work.needs_no_past() {
            return last.work.is_none().then_some(conversations.len());
        }
        let candidates: Vec<Candidate<'_>> = conversations.iter().map(|slot| slot.candidate(work.domain())).collect();
        choice::choose(&candidates, work.feed().tokens)
    }

    /// Lets a slot take over the part of the prompt that another slot has computed, if that is
    /// worthwhile.
    fn share(&mut self, index: usize, prompt: &[u32]) {
        let domain = self.slots[index].domain.clone();
        let common = |slot: &Slot| common_prefix(slot.tokens(&domain), prompt);
        let own = common(&self.slots[index]);
        let conversations = self.slots.len() - 1;
        let others = self.slots[..conversations].iter().enumerate().filter(|(other, _)| *other != index);
        let Some((other, best)) = others.map(|(other, slot)| (other, common(slot))).max_by_key(|(_, best)| *best)
        else {
            return;
        };
        if best >= own + SHARED
            && let Ok([slot, other]) = self.slots.get_disjoint_mut([index, other])
        {
            slot.cache.share(&other.cache, prompt);
        }
    }

    /// Lets the work of the slot that computes a prompt next prepare a picture. Work that fails
    /// leaves the turn to the next slot. Returns the slot.
    fn prepare(&mut self) -> Option<usize> {
        while let Some(index) = self.long_run() {
            let slot = &mut self.slots[index];
            let mut work = slot.work.take()?;
            match guarded(|| work.prepare(&self.model, &self.decoder)) {
                Ok(()) => {
                    slot.work = Some(work);
                    return Some(index);
                }
                Err(fault) => {
                    slot.clear_if_useless(&*work);
                    work.fail(fault);
                }
            }
        }
        None
    }

    /// Returns the slot that computes more than one token in the next step, if there is one.
    fn long_run(&self) -> Option<usize> {
        let count = self.slots.len();
        (0..count).map(|i| (self.next_slot + i) % count).find(|index| {
            let slot = &self.slots[*index];
            slot.is_ready() && slot.work.as_ref().is_some_and(|work| work.feed().needs_a_run())
        })
    }

    /// Selects the runs of the next step: one token of each slot that needs only one, and more of
    /// the slot `long`.
    fn select(&mut self, long: Option<usize>) -> Vec<Run> {
        let mut runs = Vec::new();
        let others = self.slots.iter().enumerate().filter(|(index, slot)| Some(*index) != long && slot.is_ready());
        for (index, slot) in others {
            runs.extend(
                slot.work
                    .as_ref()
                    .map(|work| work.feed())
                    .filter(|feed| feed.tokens.len() == 1 && feed.ready == 1)
                    .map(|feed| Run { slot: index, tokens: 1, wanted: feed.wanted, all: true, first: 0 }),
            );
        }
        if let Some((index, feed)) = long.and_then(|index| Some((index, self.slots[index].work.as_ref()?.feed()))) {
            let most = if runs.is_empty() { protocol::limits::CHUNK } else { CHUNK_BESIDE };
            let most = if self.decoder.sees_whole_texts() { feed.tokens.len() } else { most };
            let length = self.slots[index].cache.len();
            let tokens = self.decoder.run(feed.tokens, length, most.min(feed.ready));
            let all = tokens == feed.tokens.len();
            runs.push(Run { slot: index, tokens, wanted: feed.wanted, all, first: 0 });
        }
        // Runs are in the order of slots, like the sequences of the pass.
        runs.sort_by_key(|run| run.slot);
        let mut first = 0;
        for run in &mut runs {
            run.first = first;
            first += run.tokens;
        }
        runs
    }

    /// Computes one pass, and passes the results to the work.
    fn run(&mut self, runs: Vec<Run>) {
        if let Some(long) = runs.iter().find(|run| run.tokens > 1) {
            self.next_slot = long.slot + 1;
        }
        if let Err(fault) = guarded(|| Ok(self.compute(&runs)?)) {
            for run in runs {
                let slot = &mut self.slots[run.slot];
                slot.cache.restore();
                if let Some(work) = slot.work.take() {
                    slot.clear_if_useless(&*work);
                    work.fail(fault.again());
                }
            }
            self.is_ending = self.is_ending || (self.sources.check().is_err() && end_soon());
            return;
        }
        let mut logits = self.logits.chunks_exact_mut(self.model.vocabulary);
        let mut best = self.best.iter();
        for run in runs {
            let end = run.first + run.tokens;
            let tokens = if run.wanted == OutputKind::Last { end - 1..end } else { run.first..end };
            let rows = PassRows { decoder: &self.decoder, tokens };
            let output = match run.wanted {
                OutputKind::Last if run.all => match best.next() {
                    Some(Some(best)) => Output::Best(best, &rows),
                    _ => logits.next().map_or(Output::Nothing, Output::Last),
                },
                OutputKind::Last => Output::Nothing,
                OutputKind::Each => Output::Each(&rows),
            };
            let computed = Computed { model: &self.model, tokens: run.tokens, output };
            self.slots[run.slot].take(computed);
        }
    }

    /// Computes a pass, and the logits for the runs that need them after their last token.
    fn compute(&mut self, runs: &[Run]) -> Result<()> {
        self.ids.clear();
        self.sequences.clear();
        self.pictures.clear();
        for run in runs {
            let slot = &self.slots[run.slot];
            let work = slot.work.as_ref().context("invariant: a run has work")?;
            let feed = work.feed();
            self.ids.extend_from_slice(&feed.tokens[..run.tokens]);
            slot.cache.check_room(run.tokens)?;
            let (second, is_prompt) = (feed.second, feed.is_prompt);
            let mut sequence = slot.cache.sequence(run.first, run.tokens);
            (sequence.second, sequence.span.is_prompt) = (second, is_prompt);
            let begins_with_row = feed.tokens.first().is_some_and(|id| is_row(*id));
            sequence.span.is_bidirectional = self.decoder.has_bidirectional_pictures() && begins_with_row;
            self.sequences.push(sequence);
            self.pictures.extend_from_slice(feed.pictures);
        }
        self.decoder.forward(&self.ids, &self.sequences, &self.pictures)?;
        for run in runs {
            let own = &self.ids[run.first..run.first + run.tokens];
            self.slots[run.slot].cache.advance(own, &self.pictures);
        }
        self.find_last(runs)?;
        self.sources.check()
    }

    /// Computes the logits, or the best candidates, for each run that needs them and feeds its last
    /// token in this pass.
    fn find_last(&mut self, runs: &[Run]) -> Result<()> {
        let (logits, best) = (&mut self.logits, &mut self.best);
        logits.clear();
        best.clear();
        let wanted = runs.iter().filter(|run| run.wanted == OutputKind::Last && run.all);
        if self.decoder.selects() {
            // The allowed tokens are determined while the device computes.
            let slots = &mut self.slots;
            let selected = |run: &Run| {
                let work = slots[run.slot].work.as_mut();
                // If this fails, the work gets all logits and reports its own error when it takes
                // them; the other slots are unaffected.
                let selection = work.and_then(|work| guarded(|| Ok(work.selection())).ok().flatten());
                (run.first + run.tokens - 1, selection)
            };
            let wanted: Vec<_> = wanted.map(selected).collect();
            best.resize_with(wanted.len(), || None);
            // Rows arrive in the order of the runs that need them.
            return self.decoder.best(&wanted, &mut |at, found| {
                match found {
                    Logits::Row(row) => logits.extend_from_slice(row),
                    Logits::Best(own) => best[at] = Some(own),
                }
                Ok(())
            });
        }
        let last: Vec<usize> = wanted.map(|run| run.first + run.tokens - 1).collect();
        if last.is_empty() {
            return Ok(());
        }
        self.decoder.logits(&last, &mut |row| {
            logits.extend_from_slice(row);
            Ok(())
        })
    }
}

/// Ends the process once the failures have been sent. The daemon then starts another. If the thread
/// cannot be started, each pass fails until the model is unloaded.
fn end_soon() -> bool {
    let end = || {
        std::thread::sleep(LAST_ANSWERS);
        std::process::exit(1);
    };
    std::thread::Builder::new().name("end".to_owned()).spawn(end).is_ok()
}
