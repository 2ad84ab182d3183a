//! Choosing the next token from logits.
//!
//! Penalties change logits; then candidates are filtered in the order top-k, typical, top-p, min-p; then the temperature
//! divides what is left and one is drawn. Temperature 0 takes the likeliest after penalties.
//! Sources: llama.cpp's `llama-sampler.cpp`; typical sampling: Meister et al. 2022 (arXiv 2202.00666); min-p: Nguyen et
//! al. 2024 (arXiv 2407.01082).

use std::collections::HashMap;

use anyhow::{Result, bail};
use protocol::Sampling;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Chooses tokens for one generation.
#[derive(Debug)]
pub(crate) struct Sampler {
    options: Sampling,
    random: StdRng,
    /// The last tokens, oldest first, as many as penalties look at.
    recent: Vec<u32>,
    /// Memory of a choice, for the next one.
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
    /// A sampler; `prompt` is what the penalties see first.
    pub(crate) fn new(options: Sampling, prompt: &[u32]) -> Self {
        let random = options.seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64);
        let recent = prompt[prompt.len().saturating_sub(options.repeat_last_n as usize)..].to_vec();
        // As many different ones as there may be, but for a look back that is unusually long.
        let counts = HashMap::with_capacity((options.repeat_last_n as usize).min(1 << 12));
        Self { options, random, recent, counts, candidates: Vec::new() }
    }

    /// The next token. Logits that are not numbers are an error: the model or its weights are broken.
    pub(crate) fn sample(&mut self, logits: &mut [f32]) -> Result<u32> {
        check(logits, "the model computed logits that are not numbers; its weights may be damaged")?;
        self.penalize(logits);
        check(logits, "the penalties make logits that are not numbers; choose smaller ones")?;
        let id = if self.options.temperature <= 0.0 { likeliest(logits) } else { self.draw(logits) };
        self.recent.push(id);
        let excess = self.recent.len().saturating_sub(self.options.repeat_last_n as usize);
        self.recent.drain(..excess);
        Ok(id)
    }

    fn penalize(&mut self, logits: &mut [f32]) {
        let Sampling { repeat_penalty, presence_penalty, frequency_penalty, .. } = self.options;
        self.counts.clear();
        for id in &self.recent {
            *self.counts.entry(*id).or_default() += 1.0;
        }
        for (id, count) in self.counts.drain() {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            if repeat_penalty > 0.0 {
                *logit = if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
            }
            *logit -= count * frequency_penalty + presence_penalty;
        }
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0..).zip(logits).map(|(id, logit)| Candidate { id, logit: *logit, probability: 0.0 }));
        let descending = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id));
        let k = self.options.top_k as usize;
        if k > 0 && k < candidates.len() {
            candidates.select_nth_unstable_by(k - 1, descending);
            candidates.truncate(k);
        }
        candidates.sort_unstable_by(descending);
        normalize(&mut candidates, 1.0);
        self.keep_typical(&mut candidates);
        candidates.sort_unstable_by(descending);
        self.keep_top(&mut candidates);
        let least = candidates[0].probability * self.options.min_p.clamp(0.0, 1.0);
        candidates.retain(|candidate| candidate.probability >= least);
        normalize(&mut candidates, self.options.temperature);
        let id = self.choose(&candidates);
        self.candidates = candidates;
        id
    }

    fn keep_typical(&self, candidates: &mut Vec<Candidate>) {
        let mass = self.options.typical_p;
        if mass >= 1.0 || mass <= 0.0 {
            return;
        }
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

    fn choose(&mut self, candidates: &[Candidate]) -> u32 {
        let mut left: f32 = self.random.random();
        for candidate in candidates {
            left -= candidate.probability;
            if left < 0.0 {
                return candidate.id;
            }
        }
        // Rounding may leave a little; the likeliest is as good as any.
        candidates[0].id
    }
}

/// Some logit is finite and none is above all numbers, or not a number.
fn check(logits: &[f32], reason: &'static str) -> Result<()> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        bail!(reason);
    }
    Ok(())
}

/// The index of the largest logit, the first of equals.
pub(crate) fn likeliest(logits: &[f32]) -> u32 {
    let best = (0u32..).zip(logits).fold(
        (0, f32::NEG_INFINITY),
        |best, (id, logit)| {
            if *logit > best.1 { (id, *logit) } else { best }
        },
    );
    best.0
}

/// Probabilities from logits divided by `temperature`.
fn normalize(candidates: &mut [Candidate], temperature: f32) {
    let largest = candidates.iter().fold(f32::NEG_INFINITY, |largest, candidate| largest.max(candidate.logit));
    let mut total = 0.0;
    for candidate in candidates.iter_mut() {
        candidate.probability = ((candidate.logit - largest) / temperature).exp();
        total += candidate.probability;
    }
    for candidate in candidates {
        candidate.probability /= total;
    }
}

/// Keeps the first candidates whose probabilities sum up to `mass`, at least one.
fn truncate_at_mass(candidates: &mut Vec<Candidate>, mass: f32) {
    let mut sum = 0.0;
    let enough = candidates.iter().position(|candidate| {
        sum += candidate.probability;
        sum >= mass
    });
    candidates.truncate(enough.map_or(candidates.len(), |at| at + 1).max(1));
}

/// Natural logarithms of the probabilities that logits stand for, in double precision.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |largest, logit| largest.max(*logit));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let log = sum.ln() + f64::from(largest);
    logits.iter().map(|logit| (f64::from(*logit) - log) as f32).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(temperature: f32) -> Sampling {
        Sampling { temperature, top_k: 0, top_p: 1.0, seed: Some(7), repeat_last_n: 0, ..Sampling::default() }
    }

    /// Which tokens come out of many draws.
    fn drawn(options: Sampling, logits: &[f32]) -> Vec<u32> {
        let mut sampler = Sampler::new(options, &[]);
        let mut seen: Vec<u32> = (0..2000).map(|_| sampler.sample(&mut logits.to_vec()).expect("numbers")).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn filters_keep_what_they_say() {
        // Probabilities .5, .25, .125, .125.
        let logits = [0.0, -2f32.ln(), -4f32.ln(), -4f32.ln()];
        assert_eq!(drawn(plain(1.0), &logits), [0, 1, 2, 3]);
        assert_eq!(drawn(Sampling { top_k: 2, ..plain(1.0) }, &logits), [0, 1]);
        assert_eq!(drawn(Sampling { top_p: 0.7, ..plain(1.0) }, &logits), [0, 1]);
        assert_eq!(drawn(Sampling { top_p: 0.0, ..plain(1.0) }, &logits), [0]);
        assert_eq!(drawn(Sampling { min_p: 0.3, ..plain(1.0) }, &logits), [0, 1]);
        // The entropy is 1.21 nats: token 1 (1.39) is the most typical, then 0 (0.69).
        assert_eq!(drawn(Sampling { typical_p: 0.2, ..plain(1.0) }, &logits), [1]);
        assert_eq!(drawn(Sampling { typical_p: 0.6, ..plain(1.0) }, &logits), [0, 1]);
    }

    #[test]
    fn draws_by_probability() {
        let logits = [0.0, 3f32.ln()];
        let mut sampler = Sampler::new(plain(1.0), &[]);
        let ones: u32 = (0..4000).map(|_| sampler.sample(&mut logits.to_vec()).expect("numbers")).sum();
        assert!((2850..3150).contains(&ones), "{ones} of 4000, expected about 3000");
    }

    #[test]
    fn penalties_look_back_as_far_as_they_say() {
        let options = Sampling { repeat_last_n: 2, repeat_penalty: 2.0, ..plain(0.0) };
        let mut sampler = Sampler::new(options, &[0, 1, 1]);
        assert_eq!(sampler.sample(&mut [1.5, 2.0, 1.2]).expect("numbers"), 0, "1 is halved, 0 is too long ago");
        let options = Sampling { repeat_last_n: 8, frequency_penalty: 0.5, presence_penalty: 0.1, ..plain(0.0) };
        let mut sampler = Sampler::new(options, &[1, 1]);
        let mut logits = [0.8, 2.0];
        assert_eq!(sampler.sample(&mut logits).expect("numbers"), 1);
        assert!((logits[1] - 0.9).abs() < 1e-6, "2.0 - 2 · 0.5 - 0.1");
    }

    #[test]
    fn refuses_what_is_not_a_number() {
        for bad in [[0.0, f32::NAN], [0.0, f32::INFINITY], [f32::NEG_INFINITY; 2]] {
            assert!(Sampler::new(plain(0.0), &[]).sample(&mut bad.clone()).is_err(), "{bad:?}");
        }
        let options = Sampling { repeat_last_n: 4, presence_penalty: f32::NEG_INFINITY, ..plain(1.0) };
        assert!(Sampler::new(options, &[1]).sample(&mut [0.0, 0.0]).is_err());
    }

    proptest! {
        #[test]
        fn repeatable_and_within_the_vocabulary(
            logits in prop::collection::vec(-20f32..20.0, 1..50),
            temperature in 0f32..3.0, top_k in 0u32..60, top_p in 0f32..1.2, min_p in 0f32..3.0, typical_p in 0f32..1.2, seed: u64,
        ) {
            let options = Sampling { temperature, top_k, top_p, min_p, typical_p, seed: Some(seed), ..Sampling::default() };
            let draw = || {
                let mut sampler = Sampler::new(options, &[]);
                (0..5).map(|_| sampler.sample(&mut logits.clone()).expect("numbers")).collect::<Vec<_>>()
            };
            let ids = draw();
            prop_assert!(ids.iter().all(|id| (*id as usize) < logits.len()));
            prop_assert_eq!(draw(), ids);
        }
    }
}
