//! Evaluating a sequence that is known: what the model expects at every position of it.

use anyhow::{Context, Result, ensure};
use protocol::{EvaluateOutput, EvaluateRequest};

use crate::cache::KvCache;
use crate::decoder::Decoder;

/// Forgets what the cache holds and evaluates a sequence, see [`EvaluateOutput`].
///
/// # Errors
/// Where the sequence is longer than the context, or names a token that is not in the vocabulary.
pub(crate) fn evaluate(decoder: &Decoder, cache: &mut KvCache, request: &EvaluateRequest) -> Result<Vec<f32>> {
    cache.keep_prefix(&[]);
    let mut all = Vec::new();
    let mut next = request.tokens.iter().skip(1);
    let step = if request.stepwise { 1 } else { request.tokens.len().max(1) };
    for tokens in request.tokens.chunks(step) {
        decoder.evaluate(tokens, cache, |logits| {
            match request.output {
                EvaluateOutput::Logits => all.extend_from_slice(logits),
                // Nothing follows the last one.
                EvaluateOutput::Logprobs => all.extend(next.next().map(|token| logprob(logits, *token)).transpose()?),
            }
            Ok(())
        })?;
    }
    Ok(all)
}

/// The natural logarithm of a token's probability, summed in double precision.
fn logprob(logits: &[f32], token: u32) -> Result<f32> {
    let logit = logits.get(token as usize);
    let logit = logit.with_context(|| format!("token {token} is not in the vocabulary of {}", logits.len()))?;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let logprob = f64::from(logit - largest) - sum.ln();
    ensure!(!logprob.is_nan(), "the model's logits are not numbers; its weights are damaged or overflow");
    Ok(logprob as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_up_to_one() {
        let logits = [1.5, -2.0, 0.0, 80.0, 79.0];
        let sum: f64 = (0..5).map(|token| f64::from(logprob(&logits, token).expect("a token")).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let expected = -(1.0 + (-1.0f64).exp()).ln();
        assert!((f64::from(logprob(&logits, 3).expect("a token")) - expected).abs() < 1e-6);
        assert!(logprob(&logits, 5).is_err());
        assert!(logprob(&[f32::NAN, 1.0], 1).is_err());
    }
}
