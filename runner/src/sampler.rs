//! Sampling: the choice of the next token from logits.
//!
//! Penalties change logits. Then the filters top-k, typical, top-p and min-p reduce the candidates,
//! in this order. Then the temperature divides the remaining logits, and one candidate is drawn.
//! Temperature 0 takes the likeliest token after penalties.
//!
//! Sources: llama.cpp's `llama-sampler.cpp`; typical sampling: Meister et al. 2022 (arXiv
//! 2202.00666); min-p: Nguyen et al. 2024 (arXiv 2407.01082).

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use anyhow::{Result, bail};
use device::{Change, MOST_BEST};
use protocol::Sampling;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::backend::{Best, Selection};

/// Chooses tokens for one generation.
#[derive(Debug)]
pub(crate) struct Sampler {
    options: Sampling,
    random: StdRng,
    /// The last tokens, oldest first, as many as penalties consider.
    recent: Vec<u32>,
    /// Buffers of a choice, reused by the next one.
    counts: HashMap<u32, f32>,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    probability: f32,
}

impl Sampler {
    /// Creates a sampler; `prompt` holds the tokens that penalties consider first.
    pub(crate) fn new(options: Sampling, prompt: &[u32]) -> Self {
        let random = options.seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64);
        let recent = prompt[prompt.len().saturating_sub(options.repeat_last_n as usize)..].to_vec();
        // As many entries as there can be, unless penalties consider unusually many tokens.
        let counts = HashMap::with_capacity((options.repeat_last_n as usize).min(1 << 12));
        Self { options, random, recent, counts, candidates: Vec::new() }
    }

    /// Returns the next token. Fails if logits are not numbers: the model or its weights are
    /// broken.
    pub(crate) fn sample(&mut self, logits: &mut [f32]) -> Result<u32> {
        check(logits, "the model computed logits that are not numbers; its weights may be damaged")?;
        self.penalize(logits);
        check(logits, "the penalties make logits that are not numbers; choose smaller ones")?;
        let id = if self.options.temperature <= 0.0 { likeliest(logits) } else { self.draw(logits) };
        self.remember(id);
        Ok(id)
    }

    fn remember(&mut self, id: u32) {
        self.recent.push(id);
        let excess = self.recent.len().saturating_sub(self.options.repeat_last_n as usize);
        self.recent.drain(..excess);
    }

    /// Returns the selection that [`choose`](Self::choose) needs from logits to which `bias` is
    /// added first; `None` if it would need all logits. The caller sets which tokens are allowed.
    pub(crate) fn selection(&mut self, bias: &[(u32, f32)]) -> Option<Selection> {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.options;
        let count = match top_k as usize {
            _ if temperature <= 0.0 => 1,
            // Usually few tokens pass all of these filters.
            0 if !self.keeps_typical() && (top_p < 1.0 || min_p > 0.0) => MOST_BEST,
            count @ 1..=MOST_BEST => count,
            _ => return None,
        };
        let unchanged = |token| Change { token, bias: 0.0, divisor: 1.0, minus: 0.0 };
        let mut changes: BTreeMap<u32, Change> = BTreeMap::new();
        for (token, bias) in bias {
            changes.entry(*token).or_insert_with(|| unchanged(*token)).bias += bias;
        }
        self.count_recent();
        for (token, count) in &self.counts {
            let (divisor, minus) = self.penalty(*count);
            let change = changes.entry(*token).or_insert_with(|| unchanged(*token));
            (change.divisor, change.minus) = (divisor, minus);
        }
        let is_change = |change: &Change| *change != unchanged(change.token);
        let changes = changes.into_values().filter(is_change).collect();
        Some(Selection { count, changes, allowed: None })
    }

    /// Returns the next token from the best logits, see [`selection`](Self::selection): the token
    /// that [`sample`](Self::sample) would return. `None` if the best logits do not suffice.
    pub(crate) fn choose(&mut self, best: &Best) -> Option<u32> {
        if best.is_broken || !best.largest.is_finite() {
            return None;
        }
        let id = if self.options.temperature <= 0.0 { best.tokens.first()?.0 } else { self.draw_of(best)? };
        self.remember(id);
        Some(id)
    }

    fn draw_of(&mut self, best: &Best) -> Option<u32> {
        let Sampling { top_k, top_p, min_p, .. } = self.options;
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let probability = |logit: f32| (logit - best.largest).exp() / best.mass;
        let candidate =
            |(id, logit): &(u32, f32)| Candidate { id: *id, logit: *logit, probability: probability(*logit) };
        candidates.extend(best.tokens.iter().map(candidate));
        if top_k > 0 {
            normalize(&mut candidates, 1.0);
        } else if candidates.len() == MOST_BEST {
            // Missing candidates are less likely than all that are present.
            let is_mass = candidates.iter().map(|candidate| candidate.probability).sum::<f32>() >= top_p;
            let least = candidates[0].probability * min_p.clamp(0.0, 1.0);
            if !(is_mass && top_p < 1.0) && candidates[MOST_BEST - 1].probability >= least {
                self.candidates = candidates;
                return None;
            }
        }
        let id = self.draw_sorted(&mut candidates);
        self.candidates = candidates;
        Some(id)
    }

    /// Counts how often each of the last tokens occurred.
    fn count_recent(&mut self) {
        self.counts.clear();
        for id in &self.recent {
            *self.counts.entry(*id).or_default() += 1.0;
        }
    }

    /// Returns the penalties of a token that occurred `count` times: the divisor of positive
    /// logits, which is the factor of negative ones, and the number to subtract afterwards.
    fn penalty(&self, count: f32) -> (f32, f32) {
        let Sampling { repeat_penalty, presence_penalty, frequency_penalty, .. } = self.options;
        (if repeat_penalty > 0.0 { repeat_penalty } else { 1.0 }, count * frequency_penalty + presence_penalty)
    }

    fn keeps_typical(&self) -> bool {
        let mass = self.options.typical_p;
        mass < 1.0 && mass > 0.0
    }

    fn penalize(&mut self, logits: &mut [f32]) {
        self.count_recent();
        for (id, count) in &self.counts {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            let (divisor, minus) = self.penalty(*count);
            *logit = if *logit > 0.0 { *logit / divisor } else { *logit * divisor };
            *logit -= minus;
        }
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0..).zip(logits).map(|(id, logit)| Candidate { id, logit: *logit, probability: 0.0 }));
        let k = self.options.top_k as usize;
        if k > 0 && k < candidates.len() {
            candidates.select_nth_unstable_by(k - 1, descending);
            candidates.truncate(k);
        }
        candidates.sort_unstable_by(descending);
        normalize(&mut candidates, 1.0);
        let id = self.draw_sorted(&mut candidates);
        self.candidates = candidates;
        id
    }

    /// Draws one of the candidates, which have probabilities and are sorted, the likeliest first.
    fn draw_sorted(&mut self, candidates: &mut Vec<Candidate>) -> u32 {
        if self.keeps_typical() {
            self.keep_typical(candidates);
            candidates.sort_unstable_by(descending);
        }
        self.keep_top(candidates);
        let least = candidates[0].probability * self.options.min_p.clamp(0.0, 1.0);
        candidates.retain(|candidate| candidate.probability >= least);
        normalize(candidates, self.options.temperature);
        self.pick(candidates)
    }

    fn keep_typical(&self, candidates: &mut Vec<Candidate>) {
        let mass = self.options.typical_p;
        let surprise = |candidate: &Candidate| -candidate.probability.max(f32::MIN_POSITIVE).ln();
        let entropy: f32 = candidates.iter().map(|candidate| candidate.probability * surprise(candidate)).sum();
        let oddness = |candidate: &Candidate| (surprise(candidate) - entropy).abs();
        candidates.sort_unstable_by(|a, b| oddness(a).total_cmp(&oddness(b)));
        truncate_at_mass(candidates, mass);
        normalize(candidates, 1.0);
    }

    fn keep_top(&self, candidates: &mut Vec<Candidate>) {
        if self.options.top_p < 1.0 {
            truncate_at_mass(candidates, self.options.top_p);
            normalize(candidates, 1.0);
        }
    }

    fn pick(&mut self, candidates: &[Candidate]) -> u32 {
        let mut left: f32 = self.random.random();
        for candidate in candidates {
            left -= candidate.probability;
            if left < 0.0 {
                return candidate.id;
            }
        }
        // Rounding may leave a small remainder; the likeliest token gets it.
        candidates[0].id
    }
}

/// Orders the likeliest first, and by id if equal; zeros are equal regardless of their sign.
fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
}

/// Checks that some logit is finite, and that none is infinite above or not a number.
fn check(logits: &[f32], reason: &'static str) -> Result<()> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        bail!(reason);
    }
    Ok(())
}

/// Returns the index of the largest logit, the first if several are equal.
pub(crate) fn likeliest(logits: &[f32]) -> u32 {
    let best = (0u32..).zip(logits).fold(
        (0, f32::NEG_INFINITY),
        |best, (id, logit)| {
            if *logit > best.1 { (id, *logit) } else { best }
        },
    );
    best.0
}

/// Computes probabilities from logits divided by `temperature`.
fn normalize(candidates: &mut [Candidate], temperature: f32) {
    let largest = candidates.iter().fold(f32::NEG_INFINITY, |largest, candidate| largest.max(candidate.logit));
    // The sum is in float64: most of a vocabulary is so unlikely that float32 would lose it beside
    // the rest.
    let mut total = 0.0_f64;
    for candidate in candidates.iter_mut() {
        candidate.probability = ((candidate.logit - largest) / temperature).exp();
        total += f64::from(candidate.probability);
    }
    for candidate in candidates {
        candidate.probability = (f64::from(candidate.probability) / total) as f32;
    }
}

/// Keeps the first candidates, at least one, until their probabilities sum up to `mass`.
fn truncate_at_mass(candidates: &mut Vec<Candidate>, mass: f32) {
    let mut sum = 0.0;
    let enough = candidates.iter().position(|candidate| {
        sum += candidate.probability;
        sum >= mass
    });
    candidates.truncate(enough.map_or(candidates.len(), |at| at + 1).max(1));
}

/// Returns the natural logarithms of the probabilities that logits stand for. The sum is in double
/// precision.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, logit| largest.max(*logit));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let log = sum.ln() + f64::from(largest);
    logits.iter().map(|logit| (f64::from(*logit) - log) as f32).collect()
}

#[cfg(test)]
mod tests;
