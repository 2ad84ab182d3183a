//! Reranking: a score for each document, computed from the query and the document together.
//!
//! See [`Ranking`] for how the two become tokens, and which numbers of the model form the score.

use anyhow::{Context, anyhow};
use prompt::Pair;
use protocol::{RerankReply, RerankRequest};
use tokio::sync::oneshot;

use crate::cache::SlotCache;
use crate::engine::{Computed, Fault, Feed, Listener, Output, OutputKind, Work, WorkProgress, check_vocabulary};
use crate::text::model::Model;
use crate::text::pooling::Pooled;
use crate::text::ranking::{Asked, Inputs, Ranking, ScoreSource};

/// A ranking in progress; it computes one document after the other.
pub(crate) struct Rerank {
    inputs: Inputs,
    truncate: bool,
    raw: bool,
    source: ScoreSource,
    keeps_beginning: bool,
    /// Number of tokens that fit.
    context: usize,
    /// Index of the first document in the client's list.
    first: u64,
    /// Index of the input that is being computed.
    index: usize,
    /// Its tokens.
    input: Pair,
    /// Number of its tokens that were computed.
    fed: usize,
    /// Intermediate result of pooling the input.
    pooled: Pooled,
    answer: RerankReply,
    reply: Option<oneshot::Sender<Result<RerankReply, Fault>>>,
}

impl Rerank {
    /// Creates a ranking that sends its result to `reply`; it stops if that channel is closed.
    ///
    /// # Errors
    /// Fails if the model cannot rank, or the texts cannot be converted to tokens.
    pub(crate) fn new(
        model: &Model,
        request: &RerankRequest,
        reply: oneshot::Sender<Result<RerankReply, Fault>>,
    ) -> Result<Self, Fault> {
        let blame = |error: anyhow::Error| Fault::Request(format!("{error:#}"));
        let ranking = ranking(model)?;
        let default = model.sentence.prompt(None).map_err(blame)?;
        let asked = Asked {
            text: &model.text,
            query: &request.query,
            instruction: request.instruction.as_deref().unwrap_or(default),
            lowers: model.sentence.lowers,
            most: request.document_tokens.map(|most| most as usize),
        };
        let inputs = ranking.inputs(&asked, &request.documents, || !reply.is_closed()).map_err(blame)?;
        // The context is unknown until the work has a slot.
        let (input, _) = inputs.get(0, usize::MAX);
        Ok(Self {
            truncate: request.truncate,
            raw: request.raw_scores,
            source: ranking.source,
            keeps_beginning: ranking.keeps_beginning,
            context: usize::MAX,
            first: request.first,
            index: 0,
            input,
            fed: 0,
            pooled: Pooled::default(),
            answer: RerankReply { truncated_tokens: inputs.dropped as u64, ..RerankReply::default() },
            inputs,
            reply: Some(reply),
        })
    }

    /// Prepares the cache for the next input. Prompts have a common prefix; its states are reused
    /// if only the end of a prompt counts.
    fn start(&mut self, model: &Model, cache: &mut SlotCache) -> Result<(), Fault> {
        if self.index == self.inputs.len() {
            return Ok(());
        }
        let (input, dropped) = self.fits(self.index)?;
        check_vocabulary(&input.tokens, model.vocabulary)?;
        self.answer.truncated_tokens += dropped as u64;
        if !self.keeps_beginning {
            cache.keep_prefix(&[]);
        }
        self.fed = cache.keep_prefix(&input.tokens);
        self.input = input;
        Ok(())
    }

    /// Returns the tokens of an input, and how many were dropped.
    ///
    /// # Errors
    /// Fails if the tokens do not fit.
    fn fits(&self, index: usize) -> Result<(Pair, usize), Fault> {
        let (input, dropped) = self.inputs.get(index, self.context);
        let (count, most) = (input.tokens.len(), self.context);
        let refused = if count == 0 {
            "it makes no tokens with its query; there must be at least one".to_owned()
        } else if dropped > 0 && !self.truncate {
            format!("it has {} tokens with its query, at most {count} fit", count + dropped)
        } else if count > most {
            format!("the {count} tokens around the two texts exceed the context of {most} tokens")
        } else {
            return Ok((input, dropped));
        };
        Err(Fault::Request(format!("document {}: {refused}", self.first + index as u64)))
    }

    /// Stores the score of a completed input, and starts the next input.
    fn complete(&mut self, model: &Model, score: f64, cache: &mut SlotCache) -> Result<(), Fault> {
        if !score.is_finite() {
            let damaged = "the model computed a score that is not a number; its weights may be damaged";
            return Err(Fault::Failed(anyhow::anyhow!(damaged)));
        }
        self.answer.scores.push(score);
        self.answer.prompt_tokens.push(self.input.tokens.len() as u64);
        self.index += 1;
        self.start(model, cache)
    }
}

/// Returns how the model ranks.
fn ranking(model: &Model) -> Result<&Ranking, Fault> {
    model.ranking.as_ref().map_err(|error| Fault::Request(format!("this model cannot rank: {error:#}")))
}

impl Work for Rerank {
    fn listener(&self) -> Listener {
        if self.reply.as_ref().is_none_or(oneshot::Sender::is_closed) { Listener::Gone } else { Listener::Ready }
    }

    fn needs_no_past(&self) -> bool {
        true
    }

    fn begin(&mut self, model: &Model, cache: &mut SlotCache) -> Result<(), Fault> {
        self.context = cache.context();
        if !self.truncate {
            (0..self.inputs.len()).try_for_each(|index| self.fits(index).map(drop))?;
        }
        self.start(model, cache)
    }

    fn feed(&self) -> Feed<'_> {
        let wanted = match self.source {
            ScoreSource::Head => OutputKind::Each,
            ScoreSource::Logits => OutputKind::Last,
        };
        let second = self.input.second.map(|place| place.saturating_sub(self.fed));
        Feed { second, ..Feed::of_tokens(&self.input.tokens[self.fed..], wanted, true) }
    }

    fn take(&mut self, computed: Computed<'_>, cache: &mut SlotCache) -> Result<WorkProgress, Fault> {
        let Computed { model, tokens, output } = computed;
        let first = self.fed;
        self.fed += tokens;
        let is_whole = self.fed == self.input.tokens.len();
        match output {
            Output::Nothing => {}
            Output::Best(..) => return Err(anyhow!("invariant: it selects nothing").into()),
            Output::Last(logits) => {
                let score = ranking(model)?.score(|token| f64::from(logits[token]), self.raw);
                self.complete(model, score, cache)?;
            }
            Output::Each(rows) => {
                let scorer = model.scorer.as_ref().context("invariant: a ranking by a head has a scorer")?;
                let mut position = first;
                rows.hidden(&mut |hidden| {
                    scorer.pooling.add(&mut self.pooled, hidden, position);
                    position += 1;
                    Ok(())
                })?;
                if is_whole {
                    let numbers = scorer.scores(&scorer.pooling.finish(std::mem::take(&mut self.pooled)));
                    let score = ranking(model)?.score(|label| numbers[label], self.raw);
                    self.complete(model, score, cache)?;
                }
            }
        }
        if self.index < self.inputs.len() {
            return Ok(WorkProgress::More);
        }
        if let Some(reply) = self.reply.take() {
            // The client may have disconnected.
            let _ = reply.send(Ok(std::mem::take(&mut self.answer)));
        }
        Ok(WorkProgress::Finished)
    }

    fn fail(self: Box<Self>, fault: Fault) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Err(fault));
        }
    }
}
