//! A generation: computes a prompt, then token by token, until a condition ends it.

mod answer;
mod answer_constraint;
mod logprobs;
mod long_repetition;
mod prompt_pictures;
mod short_repetition;
mod truncation;

use std::time::Instant;

use anyhow::anyhow;
use prompt::{Special, Tools};
use protocol::{FinishReason, GenerateEvent, GenerateRequest, Prompt, ToolChoice, Usage};

use crate::backend::Selection;
use crate::cache::SlotCache;
use crate::decoder::Decoder;
use crate::engine::{Computed, Fault, Feed, Listener, Output, OutputKind, Work, WorkProgress, check_vocabulary};
use crate::sampler::{Sampler, log_softmax};
use crate::text::model::Model;
use crate::text::text_model::Prompted;
use answer::{AnswerStream, Heard};
use answer_constraint::AnswerConstraint;
use long_repetition::LongRepetition;
use prompt_pictures::PromptPictures;
use short_repetition::ShortRepetition;

/// A generation without a token limit, whose oldest tokens are dropped, ends after the tokens of so
/// many contexts, because a model may never end by itself. Ollama's limit.
const CONTEXTS: u64 = 10;

/// The receiver of events.
pub(crate) trait Sink: Send {
    /// Sends an event; returns `false` if the listener is gone.
    fn send(&self, event: GenerateEvent) -> bool;
    /// Returns whether there is a listener, and whether it has room for the events of a token.
    fn listener(&self) -> Listener;
}

/// Reports a fault to the sink.
pub(crate) fn refuse(sink: &dyn Sink, fault: &Fault) {
    sink.send(GenerateEvent::Error { error: fault.to_string(), kind: fault.kind() });
}

/// A generation in progress.
pub(crate) struct Generation {
    sink: Box<dyn Sink>,
    request: GenerateRequest,
    /// All tokens so far: the prompt's, then the answer's.
    tokens: Vec<u32>,
    /// Pictures of the prompt.
    pictures: PromptPictures,
    /// Tokens to compute; the first `fed` of them are done.
    pending: Vec<u32>,
    fed: usize,
    sampler: Sampler,
    answer: AnswerStream,
    constraint: AnswerConstraint,
    short_repetition: ShortRepetition,
    long_repetition: LongRepetition,
    usage: Usage,
    begin: Instant,
    /// Time at which the first token was generated; `None` while the prompt is computed.
    answering: Option<Instant>,
}

impl Generation {
    /// Tokenizes the prompt, which needs no slot.
    ///
    /// # Errors
    /// Returns the sink and a fault if the request cannot be served.
    pub(crate) fn prepare(
        model: &Model,
        mut request: GenerateRequest,
        sink: Box<dyn Sink>,
    ) -> Result<Self, (Box<dyn Sink>, Fault)> {
        match prepared(model, &mut request) {
            Ok((tokens, pictures, answer, constraint)) => Ok(Self {
                pictures,
                sink,
                sampler: Sampler::new(request.sampling, &[]),
                short_repetition: ShortRepetition::new(request.repeat_limit),
                long_repetition: LongRepetition::new(request.repeat_limit),
                answer,
                constraint,
                pending: tokens.clone(),
                tokens,
                request,
                fed: 0,
                usage: Usage::default(),
                begin: Instant::now(),
                answering: None,
            }),
            Err(fault) => Err((sink, fault)),
        }
    }

    /// Chooses the next token. Returns it with the log-probabilities of all tokens, if the request
    /// wants some.
    fn choose(&mut self, output: Output<'_>) -> Result<(u32, Option<Vec<f32>>), Fault> {
        match output {
            Output::Last(logits) => self.choose_of_row(logits),
            Output::Best(best, rows) => {
                if let Some(token) = self.sampler.choose(best) {
                    return Ok((token, None));
                }
                let mut row = Vec::new();
                rows.logits(&mut |logits| {
                    row.extend_from_slice(logits);
                    Ok(())
                })?;
                self.choose_of_row(&mut row)
            }
            Output::Nothing | Output::Each(_) => Err(anyhow!("invariant: a token follows from logits").into()),
        }
    }

    fn choose_of_row(&mut self, logits: &mut [f32]) -> Result<(u32, Option<Vec<f32>>), Fault> {
        let logprobs = self.request.top_logprobs.map(|_| log_softmax(logits));
        for (token, bias) in &self.request.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        self.constraint.mask(&self.answer.reader, logits)?;
        Ok((self.sampler.sample(logits)?, logprobs))
    }

    /// Chooses the next token and sends its text; if the generation ends, returns the reason.
    fn next(&mut self, model: &Model, output: Output<'_>, context: usize) -> Result<Step, Fault> {
        if self.is_long_enough(context) {
            return Ok(Step::End(FinishReason::Length));
        }
        let (token, logprobs) = self.choose(output)?;
        if model.text.ends.contains(&token) {
            return Ok(Step::End(FinishReason::Stop));
        }
        let complete = self.constraint.accept(&self.answer.reader, token)?;
        self.usage.tokens += 1;
        if let (Some(count), Some(logprobs)) = (self.request.top_logprobs, logprobs) {
            let previous = self.tokens.last().map_or(token, |last| self.pictures.token_of(*last));
            self.answer.logprobs.push(logprobs::logprob(model, previous, token, &logprobs, count)?);
        }
        self.tokens.push(token);
        let lost = self.short_repetition.push(token) | self.long_repetition.push(token);
        Ok(match self.answer.push(model, token, &*self.sink)? {
            Heard::More if complete => Step::End(FinishReason::Stop),
            Heard::More if lost => Step::End(FinishReason::Repetition),
            Heard::More => Step::Token(token),
            Heard::Stopped => Step::End(FinishReason::Stop),
            Heard::Gone => Step::Gone,
        })
    }

    /// Whether the token limit is reached.
    fn is_long_enough(&self, context: usize) -> bool {
        let endless = self.request.shift.then_some(CONTEXTS * context as u64);
        let most = [self.request.max_tokens, endless].into_iter().flatten().min();
        most.is_some_and(|most| self.usage.tokens >= most)
    }

    /// Queues the token as the next one to compute. If the cache lost tokens that remain in the
    /// context, they are queued before it.
    fn go_on(&mut self, token: u32, cache: &mut SlotCache) -> Step {
        if self.is_long_enough(cache.context()) {
            return Step::End(FinishReason::Length);
        }
        self.pending.clear();
        self.fed = 0;
        if cache.len() == cache.context() {
            if !self.request.shift {
                return Step::End(FinishReason::Length);
            }
            let rest = cache.shift(self.request.keep as usize);
            self.pending.extend_from_slice(&rest[cache.len()..]);
        } else if cache.begins_anew(cache.len() + 1) {
            // Longer sequences use other frequencies: all tokens are computed again.
            self.pending.extend_from_slice(cache.tokens());
            cache.lengthen();
        }
        self.pending.push(token);
        Step::Token(token)
    }

    fn finish(&mut self, model: &Model, reason: FinishReason) -> Result<WorkProgress, Fault> {
        self.usage.nanos = self.answering.map_or(0, nanos);
        self.answer.finish(model, reason, &*self.sink)?;
        let tokens =
            if self.request.tell_tokens { self.pictures.tokens_of(&self.tokens).into_owned() } else { Vec::new() };
        self.sink.send(GenerateEvent::Done { reason, usage: self.usage, tokens, stop: self.answer.stop.take() });
        Ok(WorkProgress::Finished)
    }
}

/// The step that follows from the logits after a token.
enum Step {
    /// Another token to compute.
    Token(u32),
    /// The end.
    End(FinishReason),
    /// The listener is gone.
    Gone,
}

impl Work for Generation {
    fn listener(&self) -> Listener {
        self.sink.listener()
    }

    fn domain(&self) -> &str {
        &self.request.domain
    }

    fn begin(&mut self, model: &Model, cache: &mut SlotCache) -> Result<(), Fault> {
        let tokens = std::mem::take(&mut self.tokens);
        if !self.request.truncate && tokens.len() >= cache.context() {
            return Err(Fault::too_long(tokens.len(), cache.context()));
        }
        let count = tokens.len();
        self.tokens = truncation::fit(tokens, self.request.keep as usize, cache.context());
        self.pictures.check_kept(&self.tokens, [count, cache.context()])?;
        self.usage.truncated_tokens = (count - self.tokens.len()) as u64;
        self.usage.prompt_tokens = self.tokens.len() as u64;
        let cached = cache.keep_prefix(&self.tokens);
        self.usage.cached_tokens = cached as u64;
        self.pending = self.tokens[cached..].to_vec();
        let tokens = self.pictures.tokens_of(&self.tokens);
        self.sampler = Sampler::new(self.request.sampling, &tokens);
        self.answer.follow(&model.text, &tokens);
        self.begin = Instant::now();
        Ok(())
    }

    fn feed(&self) -> Feed<'_> {
        let (tokens, is_prompt) = (&self.pending[self.fed..], self.answering.is_none());
        let feed = Feed::of_tokens(tokens, OutputKind::Last, is_prompt);
        Feed { ready: self.pictures.ready(tokens), pictures: self.pictures.rows(), ..feed }
    }

    fn prepare(&mut self, model: &Model, decoder: &Decoder) -> Result<(), Fault> {
        let next = self.pending.get(self.fed).copied();
        self.pictures.prepare(model, decoder, next, &mut self.usage)
    }

    fn selection(&mut self) -> Option<Selection> {
        if self.request.top_logprobs.is_some() {
            return None;
        }
        let selection = self.sampler.selection(&self.request.logit_bias)?;
        // If the grammar fails here, it fails again when the token is taken, and the error is
        // reported.
        let allowed = self.constraint.allowed(&self.answer.reader).ok()?;
        Some(Selection { allowed, ..selection })
    }

    fn take(&mut self, computed: Computed<'_>, cache: &mut SlotCache) -> Result<WorkProgress, Fault> {
        self.fed += computed.tokens;
        self.pictures.release(&self.pending[self.fed..]);
        if let Output::Nothing = computed.output {
            return Ok(WorkProgress::More);
        }
        if self.answering.is_none() {
            self.usage.prompt_nanos = nanos(self.begin);
            self.answering = Some(Instant::now());
        }
        let step = match self.next(computed.model, computed.output, cache.context())? {
            Step::Token(token) => self.go_on(token, cache),
            step => step,
        };
        match step {
            Step::Token(_) => Ok(WorkProgress::More),
            Step::End(reason) => self.finish(computed.model, reason),
            Step::Gone => Ok(WorkProgress::Finished),
        }
    }

    fn fail(self: Box<Self>, fault: Fault) {
        refuse(&*self.sink, &fault);
    }
}

fn nanos(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the tokens of the prompt, preceded by the tokens that the request puts before it, and
/// the pictures of the prompt, whose files are taken out of the request.
///
/// # Errors
/// Fails if the template or the tokenizer refuses the prompt, or if a picture cannot be read.
pub(crate) fn prompted(model: &Model, request: &mut GenerateRequest) -> Result<(Prompted, PromptPictures), Fault> {
    let blame = |error: anyhow::Error| Fault::Request(format!("{error:#}"));
    let pictures = PromptPictures::read(model, request)?;
    let prompt = match pictures.text(model) {
        None => model.text.prompt(&request.prompt),
        Some(text) => model.text.prompt_with(&request.prompt, &pictures.grids(), text),
    };
    let mut prompt = prompt.map_err(blame)?;
    if !request.before.is_empty() && matches!(request.prompt, Prompt::Text { .. } | Prompt::Chat(_)) {
        // The request's tokens already include the tokens that begin every text.
        let lead = model.text.tokenizer.encode("", Special { add: true, parse: false })?;
        if prompt.tokens.starts_with(&lead) && request.before.starts_with(&lead) {
            prompt.tokens.drain(..lead.len());
        }
    }
    let tokens = [request.before.as_slice(), &prompt.tokens].concat();
    Ok((Prompted { tokens, ..prompt }, pictures))
}

/// Returns the tokens to begin with, the pictures among them, the reader of the answer, and the
/// constraint on the answer.
fn prepared(
    model: &Model,
    request: &mut GenerateRequest,
) -> Result<(Vec<u32>, PromptPictures, AnswerStream, AnswerConstraint), Fault> {
    let (Prompted { tokens, rendered }, pictures) = prompted(model, request)?;
    if tokens.is_empty() {
        return Err(Fault::Request("the prompt is empty".to_owned()));
    }
    if !model.generates {
        let reason = "this model cannot generate: it only embeds or scores texts";
        return Err(Fault::Request(reason.to_owned()));
    }
    check_vocabulary(&request.before, model.vocabulary)?;
    check_vocabulary(&pictures.tokens_of(&tokens), model.vocabulary)?;
    let biased: Vec<u32> = request.logit_bias.iter().map(|(token, _)| *token).collect();
    check_vocabulary(&biased, model.vocabulary)?;
    let tools = offered(request);
    let answer = AnswerStream::new(&model.text, request, &rendered, tools.clone());
    let constraint = AnswerConstraint::new(&model.text, request, &tools, &answer.reader)?;
    Ok((tokens, pictures, answer, constraint))
}

/// Returns the tools that the model may call.
fn offered(request: &GenerateRequest) -> Tools {
    match &request.prompt {
        Prompt::Chat(chat) if request.tool_choice != ToolChoice::None => Tools::new(chat.tools.as_ref()),
        _ => Tools::default(),
    }
}
