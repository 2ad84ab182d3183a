//! Log-probabilities of a token and of its likeliest alternatives.

use anyhow::Result;
use protocol::Logprob;

use crate::text::model::Model;

/// Returns the log-probability of a token, with the `count` likeliest tokens; `logprobs` are those
/// of all tokens, and `before` is the preceding token.
pub(super) fn logprob(model: &Model, before: u32, token: u32, logprobs: &[f32], count: u32) -> Result<Logprob> {
    // Tokens are decoded behind another token, because the first token of a text may lose its
    // space.
    let lead = model.text.tokenizer.decode(&[before], true)?;
    let one = |id: u32, top: Vec<Logprob>| -> Result<Logprob> {
        let text = model.text.tokenizer.decode(&[before, id], true)?;
        let text = text.strip_prefix(&lead).unwrap_or(&text).to_owned();
        Ok(Logprob { id, text, logprob: logprobs[id as usize], top })
    };
    let mut order: Vec<u32> = (0..logprobs.len() as u32).collect();
    let descending = |a: &u32, b: &u32| logprobs[*b as usize].total_cmp(&logprobs[*a as usize]).then(a.cmp(b));
    let count = (count as usize).min(order.len());
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, descending);
    }
    order.truncate(count);
    order.sort_unstable_by(descending);
    one(token, order.into_iter().map(|id| one(id, Vec::new())).collect::<Result<_>>()?)
}
