//! Evaluating a sequence that is known: what the model expects at every position of it.

use anyhow::{Context, Result, ensure};
use protocol::{EvaluateOutput, EvaluateRequest};

use crate::cache::KvCache;
use crate::decoder::Decoder;

/// The most bytes of logits that are answered.
const MAX_LOGITS: usize = 1 << 30;

/// Why there are no numbers.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The request asks for what is not given; says why.
    Refused(String),
    /// `go_on` said no.
    Stopped,
    /// The computation failed.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Unanswered {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Forgets what the cache holds and evaluates a sequence, see [`EvaluateOutput`]. `go_on` is asked between chunks.
///
/// # Errors
/// Where the answer would be too large, the sequence is longer than the context, or names a token that is not in the
/// vocabulary.
pub(crate) fn evaluate(
    decoder: &Decoder,
    cache: &mut KvCache,
    request: &EvaluateRequest,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<f32>, Unanswered> {
    check_size(request, decoder.vocabulary()).map_err(Unanswered::Refused)?;
    cache.keep_prefix(&[]);
    let mut all = Vec::new();
    let mut next = request.tokens.iter().skip(1);
    let step = if request.stepwise { 1 } else { request.tokens.len().max(1) };
    for tokens in request.tokens.chunks(step) {
        let finished = decoder.evaluate(tokens, cache, go_on, |logits| {
            match request.output {
                EvaluateOutput::Logits => all.extend_from_slice(logits),
                // Nothing follows the last one.
                EvaluateOutput::Logprobs => all.extend(next.next().map(|token| logprob(logits, *token)).transpose()?),
            }
            Ok(())
        })?;
        if !finished {
            return Err(Unanswered::Stopped);
        }
    }
    Ok(all)
}

/// Refuses logits that would take more memory than [`MAX_LOGITS`].
fn check_size(request: &EvaluateRequest, vocabulary: usize) -> Result<(), String> {
    let tokens = request.tokens.len();
    let size = tokens.saturating_mul(vocabulary).saturating_mul(size_of::<f32>());
    if request.output == EvaluateOutput::Logits && size > MAX_LOGITS {
        return Err(format!(
            "the logits of {tokens} tokens over a vocabulary of {vocabulary} are {size} bytes, at most {MAX_LOGITS} are \
             answered; ask for `logprobs`, or for fewer tokens"
        ));
    }
    Ok(())
}

/// The natural logarithm of a token's probability, summed in double precision.
fn logprob(logits: &[f32], token: u32) -> Result<f32> {
    let logit = logits.get(token as usize);
    let logit = logit.with_context(|| format!("token {token} is not in the vocabulary of {}", logits.len()))?;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let above = |logit: f32| f64::from(logit) - f64::from(largest);
    let sum: f64 = logits.iter().map(|logit| above(*logit).exp()).sum();
    let logprob = above(*logit) - sum.ln();
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

    #[test]
    fn logits_have_a_limit() {
        let request = |tokens: usize, output| EvaluateRequest { tokens: vec![0; tokens], stepwise: false, output };
        let fits = MAX_LOGITS / size_of::<f32>() / 1024;
        assert_eq!(check_size(&request(fits, EvaluateOutput::Logits), 1024), Ok(()));
        let error = check_size(&request(fits + 1, EvaluateOutput::Logits), 1024).expect_err("one token more");
        assert!(error.contains("logprobs"), "{error}");
        assert_eq!(check_size(&request(fits + 1, EvaluateOutput::Logprobs), 1024), Ok(()));
    }
}
