//! Reranking: a score for each document, of what the model makes of the query and the document together.
//!
//! See [`Ranking`] for how the two become tokens, and what of the model's numbers is the score.

use anyhow::Context;
use protocol::{RerankReply, RerankRequest};
use tokio::sync::oneshot;

use crate::cache::Cache;
use crate::engine::{Computed, Fault, Feed, Listener, Output, Progress, Wanted, Work, check_vocabulary};
use crate::model::Model;
use crate::pooling::Pooled;
use crate::ranking::{Asked, Input, Judge, Ranking};

/// A ranking on its way: one document after the other.
pub(crate) struct Rerank {
    inputs: Vec<Input>,
    truncate: bool,
    raw: bool,
    judge: Judge,
    keeps_beginning: bool,
    /// The most tokens of an input, where the model says.
    most: Option<usize>,
    /// The input that is being computed.
    index: usize,
    /// How many of its tokens have been.
    fed: usize,
    /// What is pooled of it so far.
    pooled: Pooled,
    answer: RerankReply,
    reply: Option<oneshot::Sender<Result<RerankReply, Fault>>>,
}

impl Rerank {
    /// A ranking that answers `reply`; it stops where that is closed.
    ///
    /// # Errors
    /// Where the model cannot rank, or a document makes tokens that are not in the vocabulary.
    pub(crate) fn new(
        model: &Model,
        request: &RerankRequest,
        reply: oneshot::Sender<Result<RerankReply, Fault>>,
    ) -> Result<Self, Fault> {
        let blame = |error: anyhow::Error| Fault::Request(format!("{error:#}"));
        let ranking = ranking(model)?;
        let default = model.sentence.prompt(None).map_err(blame)?;
        let instruction = request.instruction.as_deref().unwrap_or(default);
        let asked = Asked {
            text: &model.text,
            query: &request.query,
            instruction,
            lowers: model.sentence.lowers,
            most: request.document_tokens.map(|most| most as usize),
        };
        let end = ranking.end(&asked).map_err(blame)?;
        let mut answer = RerankReply::default();
        let mut inputs = Vec::with_capacity(request.documents.len());
        for document in &request.documents {
            let (input, dropped) = ranking.input(&asked, document, end).map_err(blame)?;
            check_vocabulary(input.tokens(), model.vocabulary)?;
            answer.truncated_tokens += dropped as u64;
            inputs.push(input);
        }
        if let Some(empty) = inputs.iter().position(|input| input.tokens().is_empty()) {
            return Err(Fault::Request(format!("document {empty} makes no tokens; each must have at least one")));
        }
        Ok(Self {
            inputs,
            truncate: request.truncate,
            raw: request.raw_scores,
            judge: ranking.judge,
            keeps_beginning: ranking.keeps_beginning,
            most: ranking.most,
            index: 0,
            fed: 0,
            pooled: Pooled::default(),
            answer,
            reply: Some(reply),
        })
    }

    /// Prepares the cache for the next input. Prompts begin alike: what was computed of that is of use where only the end counts.
    fn start(&mut self, cache: &mut dyn Cache) {
        let tokens = self.inputs.get(self.index).map_or(&[][..], Input::tokens);
        if !self.keeps_beginning {
            cache.keep_prefix(&[]);
        }
        self.fed = cache.keep_prefix(tokens);
    }

    /// Takes the score of the input that is complete.
    fn complete(&mut self, score: f64, cache: &mut dyn Cache) -> Result<(), Fault> {
        if !score.is_finite() {
            let damaged = "the model computed a score that is not a number; its weights may be damaged";
            return Err(Fault::Failed(anyhow::anyhow!(damaged)));
        }
        self.answer.scores.push(score);
        self.answer.prompt_tokens.push(self.inputs[self.index].tokens().len() as u64);
        self.index += 1;
        self.start(cache);
        Ok(())
    }
}

/// How a model ranks.
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

    fn begin(&mut self, _model: &Model, cache: &mut dyn Cache) -> Result<(), Fault> {
        let most = cache.context().min(self.most.unwrap_or(usize::MAX));
        for input in &mut self.inputs {
            let dropped = input.truncate(most);
            if dropped > 0 && !self.truncate {
                let refused = format!("a document and its query have {} tokens, at most {most} fit", dropped + most);
                return Err(Fault::Request(refused));
            }
            self.answer.truncated_tokens += dropped as u64;
        }
        self.start(cache);
        Ok(())
    }

    fn feed(&self) -> Feed<'_> {
        let input = self.inputs.get(self.index);
        let tokens = input.map_or(&[][..], |input| &input.tokens()[self.fed..]);
        let wanted = match self.judge {
            Judge::Head => Wanted::Each,
            Judge::Logits => Wanted::Last,
        };
        let second = input.and_then(Input::second).map(|place| place.saturating_sub(self.fed));
        Feed { tokens, wanted, second }
    }

    fn take(&mut self, computed: Computed<'_>, cache: &mut dyn Cache) -> Result<Progress, Fault> {
        let Computed { model, tokens, output } = computed;
        let first = self.fed;
        self.fed += tokens;
        let is_whole = self.fed == self.inputs[self.index].tokens().len();
        match output {
            Output::Nothing => {}
            Output::Last(logits) => {
                let score = ranking(model)?.score(|token| f64::from(logits[token]), self.raw);
                self.complete(score, cache)?;
            }
            Output::Each(rows) => {
                let scorer = model.scorer.as_ref().context("invariant: who judges by a head has one")?;
                let mut position = first;
                rows.hidden(&mut |hidden| {
                    scorer.pooling.add(&mut self.pooled, hidden, position);
                    position += 1;
                    Ok(())
                })?;
                if is_whole {
                    let numbers = scorer.scores(&scorer.pooling.finish(std::mem::take(&mut self.pooled)));
                    let score = ranking(model)?.score(|label| numbers[label], self.raw);
                    self.complete(score, cache)?;
                }
            }
        }
        if self.index < self.inputs.len() {
            return Ok(Progress::More);
        }
        if let Some(reply) = self.reply.take() {
            // Whoever asked may have left.
            let _ = reply.send(Ok(std::mem::take(&mut self.answer)));
        }
        Ok(Progress::Finished)
    }

    fn fail(self: Box<Self>, fault: Fault) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Err(fault));
        }
    }
}
