//! The generation loop: prompt, then token by token, until something ends it.

use std::time::Instant;

use anyhow::{Result, ensure};
use prompt::stop::Passed;
use prompt::{StopFilter, TextStream};
use protocol::{FinishReason, GenerateEvent, GenerateRequest, Logprob, Usage};

use crate::cache::KvCache;
use crate::model::Model;
use crate::sampler::{Sampler, log_softmax};

/// Where events go. `false` means that nobody listens any more.
pub(crate) trait Sink {
    /// Sends an event.
    fn send(&self, event: GenerateEvent) -> bool;
    /// Whether anybody listens.
    fn is_open(&self) -> bool;
}

/// Generates. Ends silently where nobody listens any more.
pub(crate) fn generate(model: &Model, cache: &mut KvCache, request: &GenerateRequest, sink: &dyn Sink) -> Result<()> {
    let mut usage = Usage::default();
    let tokens = fit(model.text.tokens(&request.prompt)?, request.keep as usize, cache.context(), &mut usage)?;
    usage.prompt_tokens = tokens.len() as u64;
    let cached = cache.keep_prefix(&tokens);
    usage.cached_tokens = cached as u64;
    let begin = Instant::now();
    let Some(mut logits) = model.decoder.prefill(&tokens[cached..], cache, &|| sink.is_open())? else { return Ok(()) };
    usage.prompt_nanos = nanos(begin);

    let begin = Instant::now();
    let mut sampler = Sampler::new(request.sampling, &tokens);
    let mut told = Told::new(request, &tokens);
    let mut previous = tokens[tokens.len() - 1];
    let reason = loop {
        if request.max_tokens.is_some_and(|most| usage.tokens >= most) {
            break FinishReason::Length;
        }
        let before = request.top_logprobs.map(|count| (count, log_softmax(&logits)));
        let token = sampler.sample(&mut logits)?;
        if model.text.ends.contains(&token) {
            break FinishReason::Stop;
        }
        usage.tokens += 1;
        if let Some((count, logprobs)) = before {
            told.logprobs.push(logprob(model, previous, token, &logprobs, count)?);
        }
        previous = token;
        match told.push(model, token, sink)? {
            Heard::More => {}
            Heard::Stopped => break FinishReason::Stop,
            Heard::Gone => return Ok(()),
        }
        if cache.len() == cache.context() {
            break FinishReason::Length;
        }
        match model.decoder.prefill(&[token], cache, &|| sink.is_open())? {
            Some(next) => logits = next,
            None => return Ok(()),
        }
    };
    usage.nanos = nanos(begin);
    told.finish(model, reason, sink)?;
    sink.send(GenerateEvent::Done { reason, usage, tokens: Vec::new() });
    Ok(())
}

fn nanos(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Makes room for at least one token: drops tokens after the first `keep`, as many as it takes, and says how many.
fn fit(tokens: Vec<u32>, keep: usize, context: usize, usage: &mut Usage) -> Result<Vec<u32>> {
    ensure!(!tokens.is_empty(), "the prompt is empty");
    if tokens.len() < context {
        return Ok(tokens);
    }
    // Half of what is not kept stays free, or a long conversation would be cut again at every token.
    let keep = keep.min(context / 2);
    let tail = ((context - keep) / 2).max(1);
    let dropped = tokens.len() - keep - tail;
    usage.truncated_tokens = dropped as u64;
    Ok([&tokens[..keep], &tokens[tokens.len() - tail..]].concat())
}

fn logprob(model: &Model, before: u32, token: u32, logprobs: &[f32], count: u32) -> Result<Logprob> {
    // Decoded behind another token: the first of a text may lose its space.
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

/// What happened to a token's text.
enum Heard {
    More,
    Stopped,
    Gone,
}

/// Text on its way out: whole characters, held back where it may begin a stop string.
struct Told {
    stream: TextStream,
    stops: StopFilter,
    logprobs: Vec<Logprob>,
}

impl Told {
    fn new(request: &GenerateRequest, tokens: &[u32]) -> Self {
        Self { stream: TextStream::new(tokens), stops: StopFilter::new(&request.stop), logprobs: Vec::new() }
    }

    fn push(&mut self, model: &Model, token: u32, sink: &dyn Sink) -> Result<Heard> {
        let text = self.stream.push(&model.text.tokenizer, token)?;
        let (text, stopped) = match self.stops.push(&text) {
            Passed::Text(text) => (text, false),
            Passed::Stopped(text) => (text, true),
        };
        let open = self.tell(text, sink);
        Ok(match (open, stopped) {
            (false, _) => Heard::Gone,
            (true, true) => Heard::Stopped,
            (true, false) => Heard::More,
        })
    }

    fn finish(&mut self, model: &Model, reason: FinishReason, sink: &dyn Sink) -> Result<()> {
        let rest = self.stream.finish(&model.text.tokenizer)?;
        // After a stop string nothing follows, and nothing is held.
        if let Passed::Text(text) = self.stops.push(&rest) {
            let held = self.stops.finish();
            if reason == FinishReason::Length || !held.is_empty() || !text.is_empty() {
                self.tell(text + &held, sink);
            }
        }
        Ok(())
    }

    fn tell(&mut self, text: String, sink: &dyn Sink) -> bool {
        if text.is_empty() && self.logprobs.is_empty() {
            return sink.is_open();
        }
        sink.send(GenerateEvent::Text { text, logprobs: std::mem::take(&mut self.logprobs) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_room_and_says_so() {
        let mut usage = Usage::default();
        assert_eq!(fit(vec![1, 2, 3], 0, 4, &mut usage).expect("fits"), [1, 2, 3]);
        assert_eq!(usage.truncated_tokens, 0);
        let fitted = fit((0..100).collect(), 2, 10, &mut usage).expect("cut");
        assert_eq!(fitted, [0, 1, 96, 97, 98, 99]);
        assert_eq!(usage.truncated_tokens, 94);
        assert_eq!(fit((0..100).collect(), 200, 10, &mut usage).expect("cut"), [0, 1, 2, 3, 4, 98, 99]);
        assert_eq!(fit(vec![1], 0, 1, &mut usage).expect("cut"), [1]);
        assert!(fit(vec![], 0, 4, &mut usage).is_err());
    }
}
