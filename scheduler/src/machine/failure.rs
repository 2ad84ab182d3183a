//! Consequences of a failed runner: which requests fail, and when the next attempt starts.
//!
//! | failure | waiting requests | the next runner starts |
//! |---|---|---|
//! | a loaded runner ended | keep waiting | after the back-off |
//! | loading crashed or timed out | fail | after the back-off; new requests fail until then |
//! | the runner refused the model | fail | at the next request |
//! | not enough memory | keep waiting, once | when all idle models are gone |
//! | a new KV cache could not be built | keep waiting | at once: the model is loaded again |

use content::Digest;

use super::Machine;
use super::back_off::BackOff;
use super::event::{End, Moment, RunnerFailure, RunnerId, Why};
use super::place::Phase;
use crate::Error;

impl Machine {
    pub(super) fn failed(&mut self, runner: RunnerId, failure: RunnerFailure) {
        let Some(model) = self.model_of(runner) else { return };
        let loading = match &self.places[&model].phase {
            Phase::Loading { .. } => true,
            Phase::Rebuilding { .. } => false,
            _ => return,
        };
        self.kill(model, Why::Failed);
        match failure {
            RunnerFailure::OutOfMemory(reason) => self.out_of_memory(model, &reason),
            // Requests that wait for the new KV cache get a new runner instead.
            RunnerFailure::Refused(_) | RunnerFailure::Broken(_) if !loading => {}
            RunnerFailure::Refused(error) => self.refuse_all(model, &error),
            RunnerFailure::Broken(error) => self.load_failed(model, &error),
        }
    }

    pub(super) fn ended(&mut self, runner: RunnerId, end: &End) {
        let Some(model) = self.model_of(runner) else { return };
        let Some(place) = self.places.remove(&model) else { return };
        if !matches!(place.phase, Phase::Stopping) {
            self.counts.crashes += 1;
        }
        match (place.phase, end) {
            (Phase::Stopping | Phase::Planning { .. }, _) => {}
            (Phase::Loading { .. } | Phase::Rebuilding { .. }, End::Killed(reason)) => {
                self.out_of_memory(model, reason);
            }
            (Phase::Loading { .. }, End::Other(reason)) => self.load_failed(model, &Error::Died(reason.clone())),
            (Phase::Ready(_) | Phase::Rebuilding { .. }, _) => self.pause(model, None),
        }
    }

    /// The first time, evicts all idle models and lets waiting requests try again. The second time,
    /// refuses them.
    fn out_of_memory(&mut self, model: Digest, reason: &str) {
        if self.retried.remove(&model) {
            self.refuse_all(model, &Error::OutOfMemory(reason.to_owned()));
        } else if self.is_wanted(model) {
            self.retried.insert(model);
            self.evict_idle(model, |_| true);
        }
    }

    fn load_failed(&mut self, model: Digest, error: &Error) {
        self.pause(model, Some(error.to_string()));
        self.refuse_all(model, error);
    }

    fn pause(&mut self, model: Digest, load: Option<String>) {
        let back_off = BackOff::after(self.back_offs.get(&model), self.now, load);
        self.back_offs.insert(model, back_off);
    }

    pub(super) fn end_the_late(&mut self) {
        let late = |deadline: &Option<Moment>| deadline.is_some_and(|deadline| deadline <= self.now);
        let late: Vec<(Digest, bool)> = self
            .places
            .iter()
            .filter_map(|(model, place)| match &place.phase {
                Phase::Loading { deadline } if late(deadline) => Some((*model, true)),
                Phase::Rebuilding { deadline, .. } if late(deadline) => Some((*model, false)),
                _ => None,
            })
            .collect();
        for (model, loading) in late {
            self.kill(model, Why::Late);
            if loading {
                let seconds = self.limits.load_timeout.as_secs();
                self.load_failed(model, &Error::Timeout { what: "load the model", seconds });
            }
        }
    }
}
