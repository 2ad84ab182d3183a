//! Evaluation of a known sequence: the logits or log-probabilities at each of its positions.

use anyhow::{Context, Result, ensure};
use protocol::{EvaluateOutput, EvaluateRequest};
use tokio::sync::oneshot;

use crate::cache::SlotCache;
use crate::engine::{Computed, Fault, Feed, Listener, Output, OutputKind, Work, WorkProgress, check_vocabulary};
use crate::text::model::Model;

/// Largest size of the logits in a response, in bytes.
const MAX_LOGITS: usize = 1 << 30;

/// An evaluation in progress, see [`EvaluateOutput`].
pub(crate) struct Evaluation {
    request: EvaluateRequest,
    fed: usize,
    numbers: Vec<f32>,
    reply: Option<oneshot::Sender<Result<Vec<f32>, Fault>>>,
}

impl Evaluation {
    /// Creates an evaluation that sends its result to `reply`; it stops if that channel is closed.
    ///
    /// # Errors
    /// Fails if the response would be too large, there are no tokens, or a token is not in the
    /// vocabulary.
    pub(crate) fn new(
        request: EvaluateRequest,
        vocabulary: usize,
        reply: oneshot::Sender<Result<Vec<f32>, Fault>>,
    ) -> Result<Self, Fault> {
        check_size(&request, vocabulary).map_err(Fault::Request)?;
        check_vocabulary(&request.tokens, vocabulary)?;
        if request.tokens.is_empty() {
            return Err(Fault::Request("there are no tokens to evaluate".to_owned()));
        }
        Ok(Self { request, fed: 0, numbers: Vec::new(), reply: Some(reply) })
    }
}

impl Work for Evaluation {
    fn listener(&self) -> Listener {
        if self.reply.as_ref().is_none_or(oneshot::Sender::is_closed) { Listener::Gone } else { Listener::Ready }
    }

    fn begin(&mut self, _model: &Model, cache: &mut SlotCache) -> Result<(), Fault> {
        // No cached token is kept, because the logits of all tokens are needed.
        cache.keep_prefix(&[]);
        cache.keep_prefix(&self.request.tokens);
        cache.check_room(self.request.tokens.len()).map_err(|error| Fault::Request(error.to_string()))
    }

    fn feed(&self) -> Feed<'_> {
        let rest = &self.request.tokens[self.fed..];
        let tokens = if self.request.stepwise { &rest[..1] } else { rest };
        Feed::of_tokens(tokens, OutputKind::Each, true)
    }

    fn take(&mut self, computed: Computed<'_>, _cache: &mut SlotCache) -> Result<WorkProgress, Fault> {
        self.fed += computed.tokens;
        let Output::Each(rows) = computed.output else { return Ok(WorkProgress::More) };
        let mut next = self.request.tokens[self.fed - computed.tokens..].iter().skip(1);
        rows.logits(&mut |logits| {
            match self.request.output {
                EvaluateOutput::Logits => self.numbers.extend_from_slice(logits),
                // No token follows the last one.
                EvaluateOutput::Logprobs => {
                    self.numbers.extend(next.next().map(|token| logprob(logits, *token)).transpose()?);
                }
            }
            Ok(())
        })?;
        if self.fed < self.request.tokens.len() {
            return Ok(WorkProgress::More);
        }
        if let Some(reply) = self.reply.take() {
            // The client may have disconnected.
            let _ = reply.send(Ok(std::mem::take(&mut self.numbers)));
        }
        Ok(WorkProgress::Finished)
    }

    fn fail(self: Box<Self>, fault: Fault) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Err(fault));
        }
    }
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

/// Returns the natural logarithm of a token's probability. The sum is in double precision.
pub(crate) fn logprob(logits: &[f32], token: u32) -> Result<f32> {
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
