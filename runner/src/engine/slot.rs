//! A slot: the sequence of a conversation, and what is done with it.

use std::sync::Arc;

use anyhow::Result;

use super::choice::Candidate;
use super::work::guarded;
use super::{Computed, Progress, Slots, Work};
use crate::backend::Backend;
use crate::cache::{Cache, SlotCache};
use crate::decoder::Decoder;

/// Empty slots: one more than there are for conversations, for work that needs no past.
///
/// # Errors
/// Where there is no memory for them.
pub(super) fn make<B: Backend>(decoder: &Arc<Decoder<B>>, slots: Slots) -> Result<Vec<Slot<B>>> {
    let slot =
        || Ok(Slot { cache: SlotCache::new(slots.shape, decoder)?, domain: String::new(), work: None, last_used: 0 });
    (0..=slots.count.max(1)).map(|_| slot()).collect()
}

/// A KV cache and what is done with it.
pub(super) struct Slot<B: Backend> {
    pub(super) cache: SlotCache<B>,
    /// Whose sequence that is.
    pub(super) domain: String,
    pub(super) work: Option<Box<dyn Work>>,
    /// When it was taken last, counted in works.
    pub(super) last_used: u64,
}

impl<B: Backend> Slot<B> {
    /// As work of this domain sees it.
    pub(super) fn candidate(&self, domain: &str) -> Candidate<'_> {
        Candidate { tokens: self.tokens(domain), last_used: self.last_used, is_free: self.work.is_none() }
    }

    /// What its cache holds for work of this domain.
    pub(super) fn tokens(&self, domain: &str) -> &[u32] {
        if self.domain == domain { self.cache.tokens() } else { &[] }
    }

    /// Gives the slot to work of this domain: the sequence of another one is forgotten.
    pub(super) fn enter(&mut self, domain: &str) {
        if self.domain != domain {
            self.cache.keep_prefix(&[]);
            domain.clone_into(&mut self.domain);
        }
    }

    /// Hands a result to the work, and ends the work where it has ended.
    pub(super) fn take(&mut self, computed: Computed<'_>) {
        let Some(mut work) = self.work.take() else { return };
        match guarded(|| work.take(computed, &mut self.cache)) {
            Ok(Progress::More) => self.work = Some(work),
            Ok(Progress::Finished) => self.finish(&*work),
            Err(fault) => {
                self.finish(&*work);
                work.fail(fault);
            }
        }
    }

    /// After work has ended: what work without a past has left is of no use, and no other client's.
    pub(super) fn finish(&mut self, work: &dyn Work) {
        if work.needs_no_past() {
            self.cache.keep_prefix(&[]);
        }
    }
}
