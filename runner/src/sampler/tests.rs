//! Tests of sampling.

use proptest::prelude::*;
use rand::Rng as _;

use super::*;

fn plain(temperature: f32) -> Sampling {
    Sampling { temperature, top_k: 0, top_p: 1.0, seed: Some(7), repeat_last_n: 0, ..Sampling::default() }
}

/// Returns the distinct tokens of many draws.
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

/// Returns the candidates that a backend would select from logits.
fn best(logits: &[f32], selection: &Selection) -> Best {
    let mut changed = logits.to_vec();
    for Change { token, bias, divisor, minus } in &selection.changes {
        let x = &mut changed[*token as usize];
        *x += bias;
        *x = if *x > 0.0 { *x / divisor } else { *x * divisor } - minus;
    }
    let mut tokens: Vec<(u32, f32)> = (0..).zip(changed.iter().copied()).collect();
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    tokens.truncate(selection.count);
    let largest = changed.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mass = changed.iter().map(|x| (x - largest).exp()).sum();
    Best { tokens, largest, mass, is_broken: changed.iter().any(|x| x.is_nan()) }
}

#[test]
fn a_choice_needs_no_more_than_the_best() {
    let mut random = StdRng::seed_from_u64(3);
    let logits: Vec<f32> = (0..5000).map(|_| random.random::<f32>() * 30.0 - 15.0).collect();
    let base = Sampling { seed: Some(9), repeat_penalty: 1.3, frequency_penalty: 0.2, ..Sampling::default() };
    for (options, is_told) in [
        (base, true),
        (Sampling { temperature: 0.0, ..base }, true),
        (Sampling { typical_p: 0.7, min_p: 0.05, presence_penalty: -1.0, ..base }, true),
        (Sampling { top_k: MOST_BEST as u32, top_p: 1.0, repeat_penalty: 0.0, ..base }, true),
        (Sampling { top_k: 0, top_p: 0.5, ..base }, true),
        (Sampling { top_k: 0, top_p: 1.0, min_p: 0.1, ..base }, true),
        // More tokens pass the filters than a backend selects.
        (Sampling { top_k: 0, top_p: 0.999_999, ..base }, false),
        (Sampling { top_k: 0, top_p: 1.0, min_p: 1e-6, ..base }, false),
    ] {
        let prompt: Vec<u32> = (0..100).map(|at| at * 37 % 5000).collect();
        let [mut of_rows, mut of_best] = [0, 1].map(|_| Sampler::new(options, &prompt));
        for _ in 0..20 {
            let bias = [(17, 2.0), (17, 1.0), (4000, -5.0)];
            let selection = of_best.selection(&bias).expect("some tokens are enough");
            let chosen = of_best.choose(&best(&logits, &selection));
            assert_eq!(chosen.is_some(), is_told, "{options:?}");
            let mut row = logits.clone();
            for (id, bias) in bias {
                row[id as usize] += bias;
            }
            let token = of_rows.sample(&mut row).expect("numbers");
            match chosen {
                Some(chosen) => assert_eq!(chosen, token, "{options:?}"),
                None => break,
            }
        }
    }
    for options in [
        Sampling { top_k: 0, top_p: 1.0, ..base },
        Sampling { top_k: MOST_BEST as u32 + 1, ..base },
        Sampling { top_k: 0, typical_p: 0.5, ..base },
    ] {
        assert_eq!(Sampler::new(options, &[]).selection(&[]), None, "all are needed: {options:?}");
    }
    // Broken logits are reported when the whole row is sampled.
    let mut sampler = Sampler::new(base, &[]);
    let selection = sampler.selection(&[]).expect("some tokens are enough");
    for bad in [[0.0, f32::NAN], [0.0, f32::INFINITY], [f32::NEG_INFINITY; 2]] {
        assert_eq!(sampler.choose(&best(&bad, &selection)), None, "{bad:?}");
    }
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
