//! A slot: a KV cache with its tokens, and at most one work on it.

use std::sync::Arc;

use anyhow::Result;

use super::choice::Candidate;
use super::work::guarded;
use super::{Computed, Listener, Slots, Work, WorkProgress};
use crate::cache::SlotCache;
use crate::decoder::Decoder;

/// Creates the requested empty slots for conversations. After them, one slot for work that needs no
/// past: embeddings, rankings.
///
/// # Errors
/// Fails if there is no memory for them.
pub(super) fn make(decoder: &Arc<Decoder>, slots: Slots) -> Result<Vec<Slot>> {
    let slot =
        || Ok(Slot { cache: SlotCache::new(slots.shape, decoder)?, domain: String::new(), work: None, last_used: 0 });
    (0..=slots.count.max(1)).map(|_| slot()).collect()
}

/// A KV cache and the work on it.
pub(super) struct Slot {
    pub(super) cache: SlotCache,
    /// Isolation domain of the requests that may reuse the cached tokens: an API key, or all.
    pub(super) domain: String,
    pub(super) work: Option<Box<dyn Work>>,
    /// When the slot was last assigned, counted in assignments.
    pub(super) last_used: u64,
}

impl Slot {
    /// Returns the slot as a candidate for work of this domain.
    pub(super) fn candidate(&self, domain: &str) -> Candidate<'_> {
        Candidate { tokens: self.tokens(domain), last_used: self.last_used, is_free: self.work.is_none() }
    }

    /// Returns the cached tokens that work of this domain may use.
    pub(super) fn tokens(&self, domain: &str) -> &[u32] {
        if self.domain == domain { self.cache.tokens() } else { &[] }
    }

    /// Gives the slot to work of this domain, and removes the sequence of another domain.
    pub(super) fn enter(&mut self, domain: &str) {
        if self.domain != domain {
            self.cache.keep_prefix(&[]);
            domain.clone_into(&mut self.domain);
        }
    }

    /// Whether there is work whose listener accepts results.
    pub(super) fn is_ready(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.listener() == Listener::Ready)
    }

    /// Passes a result to the work, and removes the work once it has ended.
    pub(super) fn take(&mut self, computed: Computed<'_>) {
        let Some(mut work) = self.work.take() else { return };
        match guarded(|| work.take(computed, &mut self.cache)) {
            Ok(WorkProgress::More) => self.work = Some(work),
            Ok(WorkProgress::Finished) => self.clear_if_useless(&*work),
            Err(fault) => {
                self.clear_if_useless(&*work);
                work.fail(fault);
            }
        }
    }

    /// Removes the tokens of work that needs no past: no later work can use them.
    pub(super) fn clear_if_useless(&mut self, work: &dyn Work) {
        if work.needs_no_past() {
            self.cache.keep_prefix(&[]);
        }
    }
}
