//! Fuzzes quantization policies with any text, on a small model. Errors name a line, and every
//! decision is feasible. The first line of an input may name a scheme.
#![no_main]

use formats::{Dtype, Encoding};
use import::{Decision, Policy, Scheme, Survey, UserPolicy, UserRule};
use lode_fuzz::assert_told;

/// Names and shapes of a model that has a tensor of every kind.
const TENSORS: [(&str, &[u64]); 8] = [
    ("model.embed_tokens.weight", &[512, 256]),
    ("model.layers.0.self_attn.v_proj.weight", &[64, 256]),
    ("model.layers.0.self_attn.v_proj.bias", &[64]),
    ("model.layers.0.mlp.down_proj.weight", &[256, 768]),
    ("model.layers.1.mlp.experts.0.down_proj.weight", &[256, 96]),
    ("model.layers.1.mlp.gate.weight", &[4, 250]),
    ("model.norm.weight", &[256]),
    ("lm_head.weight", &[512, 256]),
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (scheme, text) = match Scheme::parse(first) {
        Ok(scheme) => (scheme, rest),
        Err(error) => {
            assert_told(&error);
            (Scheme::parse("q4_k_m").expect("it is known"), text)
        }
    };
    assert_eq!(Scheme::parse(scheme.name()).expect("a canonical name is one").name(), scheme.name());
    match UserPolicy::parse(text) {
        Ok(user) => check(&Policy { scheme, user }),
        Err(error) => {
            let line = told_line(&error.to_string()).expect("it names a line");
            assert!((1..=text.lines().count() + 1).contains(&line), "{error}");
        }
    }
});

fn check(policy: &Policy) {
    let line = |rule: &UserRule| told_line(&format!("the policy's {}", rule.describe())).expect("it says its line");
    assert!(policy.user_rules().iter().map(line).is_sorted(), "rules are in their order");
    let survey = Survey::new("llama", TENSORS.into_iter());
    for (name, shape) in TENSORS {
        for from in [Encoding::Plain(Dtype::Bf16), Encoding::Plain(Dtype::I64)] {
            match policy.decide(&survey, name, from, shape) {
                Ok((decision, rule)) => {
                    assert!(rule.is_none_or(|rule| rule < policy.user_rules().len()));
                    if let Decision::Encode(to) = decision {
                        assert!(to != from && to.parts(shape, Dtype::F32).is_ok(), "{name} {shape:?} {to}");
                    }
                }
                Err(error) => assert!(error.to_string().contains("the policy's line "), "{error}"),
            }
        }
    }
}

/// Returns the number in `the policy's line N: …`, or 1 for errors about the whole file.
fn told_line(error: &str) -> Option<usize> {
    match error.strip_prefix("the policy's line ") {
        Some(rest) => rest.split(':').next()?.parse().ok(),
        None => error.starts_with("the policy has ").then_some(1),
    }
}
