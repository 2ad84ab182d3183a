//! Embeddings: vectors for texts.
//!
//! The hidden states of an input, after the final norm, are pooled to one vector, see [`Pooling`].
//! Some models have layers behind pooling, which compute another vector from it.
//! The first `dimensions` elements of the vector are kept and divided by their length (L2).

use std::borrow::Cow;

use anyhow::{Result, ensure};
use prompt::Special;
use protocol::{EmbedInput, EmbedReply, EmbedRequest};
use tokio::sync::oneshot;

use crate::cache::SlotCache;
use crate::engine::{
    Computed, Fault, Feed, Listener, Output, OutputKind, PassRows, Work, WorkProgress, check_vocabulary,
};
use crate::text::model::Model;
use crate::text::pooling::{Pooled, Pooling};
use crate::text::shorten::shorten;

/// The tokens of a text.
struct EmbeddingInput {
    tokens: Vec<u32>,
    /// Number of last tokens that end every text: they stay when a text is truncated.
    end: usize,
    /// Number of first tokens that are not pooled, because they belong to the prompt.
    skipped: usize,
}

/// An embedding in progress; it computes one input after the other.
pub(crate) struct Embedding {
    inputs: Vec<EmbeddingInput>,
    truncate: bool,
    dimensions: Option<usize>,
    pooling: Pooling,
    /// Largest number of tokens of an input, if the model limits it.
    most: Option<usize>,
    /// Index of the input that is being computed.
    index: usize,
    /// Number of its tokens that were computed.
    fed: usize,
    /// Intermediate result of pooling the input.
    pooled: Pooled,
    answer: EmbedReply,
    reply: Option<oneshot::Sender<Result<EmbedReply, Fault>>>,
}

impl Embedding {
    /// Creates an embedding that sends its result to `reply`; it stops if that channel is closed.
    ///
    /// # Errors
    /// Fails if an input has no tokens, or a token that is not in the vocabulary; if the model
    /// cannot embed here; or if it does not have the requested prompt.
    pub(crate) fn new(
        model: &Model,
        request: &EmbedRequest,
        reply: oneshot::Sender<Result<EmbedReply, Fault>>,
    ) -> Result<Self, Fault> {
        let blame = |error: anyhow::Error| Fault::Request(format!("{error:#}"));
        model.sentence.check().map_err(blame)?;
        let prompt = model.sentence.prompt(request.prompt.as_deref()).map_err(blame)?;
        let inputs = request.inputs.iter().map(|input| tokens(model, input, prompt)).collect::<Result<Vec<_>, _>>()?;
        if let Some(empty) = inputs.iter().position(|input| input.tokens.is_empty()) {
            let empty = request.first + empty as u64;
            return Err(Fault::Request(format!("input {empty} is empty; each must have at least one token")));
        }
        Ok(Self {
            inputs,
            truncate: request.truncate,
            dimensions: request.dimensions.filter(|count| *count > 0).map(|count| count as usize),
            pooling: model.sentence.pooling.clone(),
            most: model.sentence.most,
            index: 0,
            fed: 0,
            pooled: Pooled::default(),
            answer: EmbedReply { embeddings: Vec::new(), prompt_tokens: Vec::new(), truncated_tokens: 0 },
            reply: Some(reply),
        })
    }

    /// Prepares the cache for the next input.
    fn start(&self, cache: &mut SlotCache) {
        cache.keep_prefix(&[]);
        if let Some(input) = self.inputs.get(self.index) {
            cache.keep_prefix(&input.tokens);
        }
    }

    /// Stores the vector of a completed input, and starts the next input.
    fn complete(&mut self, rows: &PassRows<'_>, cache: &mut SlotCache) -> Result<()> {
        let tokens = self.inputs[self.index].tokens.len();
        let pooled = self.pooling.finish(std::mem::take(&mut self.pooled));
        let vector = rows.embed(pooled.into_iter().map(|x| x as f32).collect())?;
        self.answer.embeddings.push(normalized(vector, self.dimensions)?);
        self.answer.prompt_tokens.push(tokens as u64);
        self.index += 1;
        self.fed = 0;
        self.start(cache);
        Ok(())
    }
}

fn tokens(model: &Model, input: &EmbedInput, prompt: &str) -> Result<EmbeddingInput, Fault> {
    match input {
        EmbedInput::Tokens { tokens } => {
            check_vocabulary(tokens, model.vocabulary)?;
            Ok(EmbeddingInput { tokens: tokens.clone(), end: 0, skipped: 0 })
        }
        EmbedInput::Text { text } => {
            let encode = |text: &str| {
                let text = if model.sentence.lowers { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) };
                let tokens = model.text.tokenizer.encode(&text, Special { add: true, parse: false });
                tokens.map_err(|error| Fault::Request(error.to_string()))
            };
            let tokens = encode(&[prompt, text].concat())?;
            check_vocabulary(&tokens, model.vocabulary)?;
            let empty = encode("")?;
            let skipped = if model.sentence.pooling.includes_prompt || prompt.is_empty() {
                0
            } else {
                // The tokens of the prompt, without the ones that end every text.
                let alone = encode(prompt)?;
                alone.len() - end(&alone, &empty)
            };
            Ok(EmbeddingInput { end: end(&tokens, &empty), tokens, skipped })
        }
    }
}

/// Returns how many of the last tokens end every text: the length of the common suffix with an
/// empty text's tokens.
fn end(tokens: &[u32], empty: &[u32]) -> usize {
    (0..=empty.len()).rev().find(|count| tokens.ends_with(&empty[empty.len() - count..])).unwrap_or(0)
}

/// Returns the first elements of a vector, divided by their length (L2). A vector of zeros stays
/// one.
fn normalized(mut vector: Vec<f32>, dimensions: Option<usize>) -> Result<Vec<f32>> {
    vector.truncate(dimensions.unwrap_or(usize::MAX));
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    ensure!(length.is_finite(), "the model computed hidden states that are not numbers; its weights may be damaged");
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    Ok(vector.into_iter().map(|x| (f64::from(x) * scale) as f32).collect())
}

impl Work for Embedding {
    fn listener(&self) -> Listener {
        if self.reply.as_ref().is_none_or(oneshot::Sender::is_closed) { Listener::Gone } else { Listener::Ready }
    }

    fn needs_no_past(&self) -> bool {
        true
    }

    fn begin(&mut self, _model: &Model, cache: &mut SlotCache) -> Result<(), Fault> {
        let most = cache.context().min(self.most.unwrap_or(usize::MAX));
        for input in &mut self.inputs {
            let excess = shorten(&mut input.tokens, most, input.end);
            if excess > 0 && !self.truncate {
                return Err(Fault::too_long(most + excess, most));
            }
            self.answer.truncated_tokens += excess as u64;
        }
        self.start(cache);
        Ok(())
    }

    fn feed(&self) -> Feed<'_> {
        let tokens = self.inputs.get(self.index).map_or(&[][..], |input| &input.tokens[self.fed..]);
        Feed::of_tokens(tokens, OutputKind::Each, true)
    }

    fn take(&mut self, computed: Computed<'_>, cache: &mut SlotCache) -> Result<WorkProgress, Fault> {
        let Output::Each(rows) = computed.output else { return Ok(WorkProgress::More) };
        let (input, mut position) = (&self.inputs[self.index], self.fed);
        // An input that is nothing but the prompt is pooled as a whole.
        let skipped = if input.skipped < input.tokens.len() { input.skipped } else { 0 };
        rows.hidden(&mut |hidden| {
            if position >= skipped {
                self.pooling.add(&mut self.pooled, hidden, position);
            }
            position += 1;
            Ok(())
        })?;
        self.fed += computed.tokens;
        if self.fed == self.inputs[self.index].tokens.len() {
            self.complete(rows, cache)?;
        }
        if self.index < self.inputs.len() {
            return Ok(WorkProgress::More);
        }
        if let Some(reply) = self.reply.take() {
            let none = EmbedReply { embeddings: Vec::new(), prompt_tokens: Vec::new(), truncated_tokens: 0 };
            // The client may have disconnected.
            let _ = reply.send(Ok(std::mem::replace(&mut self.answer, none)));
        }
        Ok(WorkProgress::Finished)
    }

    fn fail(self: Box<Self>, fault: Fault) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Err(fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_every_text_stays() {
        for (tokens, empty, most, expect) in [
            (&[1, 7, 8, 9, 2][..], &[1, 2][..], 3, &[1, 7, 2][..]),
            (&[7, 8, 9, 2], &[2], 2, &[7, 2]),
            (&[1, 7, 8], &[1], 2, &[1, 7]),
            (&[7, 8], &[], 1, &[7]),
            (&[1, 2], &[1, 2], 2, &[1, 2]),
        ] {
            let mut left = tokens.to_vec();
            assert_eq!(shorten(&mut left, most, end(tokens, empty)), tokens.len() - most, "{tokens:?}");
            assert_eq!(left, expect, "{tokens:?}");
        }
    }

    #[test]
    fn vectors_have_the_length_one() {
        assert_eq!(normalized(vec![3.0, 4.0], None).expect("a vector"), [0.6, 0.8]);
        assert_eq!(normalized(vec![3.0, 4.0], Some(1)).expect("a vector"), [1.0], "cut, then divided");
        assert_eq!(normalized(vec![0.0, 0.0], Some(9)).expect("a vector"), [0.0, 0.0]);
        assert!(normalized(vec![f32::NAN], None).is_err());
    }
}
