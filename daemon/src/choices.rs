//! Several generations of one request, side by side: what `OpenAI`'s `n` and lists of prompts ask for.
//!
//! Each begins when the stream is first asked, all at once: which of them wait is the runner's decision. Nothing waits for
//! the first word of all of them, because those that come last have none before the first are over.

use api::{Answer, Demand, Dialogue, Frame};
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll};
use protocol::{FailureKind, GenerateEvent, GenerateRequest};
use scheduler::KeepAlive;

use crate::call::{Call, Conversation, Generation, Piece, Ready, Think};
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::sse::Frames;
use library::Capability;

/// A call with these demands.
///
/// # Errors
/// As [`Call::begin`].
pub(crate) async fn begin(daemon: &Daemon, model: &str, demand: &Demand) -> Result<Call, Failed> {
    let keep_alive = demand.keep_alive.map(|keep| keep.0.map_or(KeepAlive::Forever, KeepAlive::For));
    let mut call = Call::begin(daemon, model, demand.options.clone(), keep_alive).await?;
    call.options = std::mem::take(&mut call.options).over(Demand::defaults());
    Ok(call)
}

/// What is to be rendered, with what the model brings along.
///
/// # Errors
/// 400 where the model cannot chat, call tools or think, and is asked to.
pub(crate) fn conversation(call: &Call, dialogue: Dialogue) -> Result<Conversation, Failed> {
    call.require_text("chat")?;
    if !dialogue.tools.is_empty() {
        call.require(Capability::Tools)?;
    }
    let think = call.thinking(dialogue.think.map(Think::from))?;
    let messages = call.conversation(dialogue.messages)?;
    Ok(Conversation { messages, tools: dialogue.tools, think, template: None })
}

/// Events of several generations.
pub(crate) struct Choices {
    streams: SelectAll<BoxStream<'static, Told>>,
    first: Option<Told>,
}

/// An event, or why there is none, with the number of its choice.
type Told = (u32, Result<GenerateEvent, Failed>);

impl Choices {
    /// Begins to generate for all requests, and waits for the first word of any.
    ///
    /// # Errors
    /// What the runner says before any text.
    pub(crate) async fn begin(ready: Ready, requests: Vec<GenerateRequest>, demand: &Demand) -> Result<Self, Failed> {
        let one_call = demand.one_tool_call;
        let stream = |(index, request)| choice(ready.clone(), index, request, one_call);
        let mut streams: SelectAll<_> = (0..).zip(requests).map(stream).collect();
        match streams.next().await {
            Some((_, Err(failed))) => Err(failed),
            first => Ok(Self { streams, first }),
        }
    }

    /// The next event of any. There are no more after an error, or after the end of all.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        match self.first.take() {
            Some(first) => Some(first),
            None => self.streams.next().await,
        }
    }

    /// All answers, in order, once they are complete.
    ///
    /// # Errors
    /// The first generation that fails; the others are given up.
    pub(crate) async fn answers(mut self, choices: usize) -> Result<Vec<Answer>, Failed> {
        let mut answers = vec![Answer::default(); choices];
        while let Some((choice, event)) = self.next().await {
            let event = event?;
            if let Some(answer) = answers.get_mut(choice as usize) {
                answer.push(event);
            }
        }
        Ok(answers)
    }

    /// Sends all events as frames, until the end or until nobody listens.
    pub(crate) async fn tell(mut self, frames: Frames, mut told: impl FnMut(u32, GenerateEvent) -> Vec<Frame>) {
        loop {
            // Text may be held back for long; a client that goes away meanwhile is noticed here.
            let next = tokio::select! {
                next = self.next() => next,
                () = frames.closed() => return,
            };
            let Some((choice, event)) = next else { return };
            let failed = event.is_err();
            let event = event.unwrap_or_else(|failed| {
                tracing::warn!("{}", failed.message);
                let of_client = failed.status.is_client_error();
                let kind = if of_client { FailureKind::BadRequest } else { FailureKind::Internal };
                GenerateEvent::Error { kind, error: failed.message }
            });
            if !frames.send(&told(choice, event)).await {
                tracing::debug!("the client went away");
                return;
            }
            if failed {
                return;
            }
        }
    }
}

/// Where a choice is.
enum State {
    Waiting(Ready, Box<GenerateRequest>),
    Running(Box<Generation>),
    Over,
}

fn choice(ready: Ready, index: u32, request: GenerateRequest, one_call: bool) -> BoxStream<'static, Told> {
    let begin = (State::Waiting(ready, Box::new(request)), false);
    let events = futures_util::stream::unfold(begin, move |(state, called)| async move {
        let mut generation = match state {
            State::Over => return None,
            State::Running(generation) => generation,
            State::Waiting(ready, request) => match ready.generate(*request).await {
                Ok(generation) => Box::new(generation),
                Err(failed) => return Some(((index, Err(failed)), (State::Over, called))),
            },
        };
        loop {
            let piece = match generation.next().await {
                Ok(piece) => piece,
                Err(failed) => return Some(((index, Err(failed)), (State::Over, called))),
            };
            if one_call && called && matches!(piece, Piece::ToolCall { .. }) {
                continue;
            }
            let called = called || matches!(piece, Piece::ToolCall { .. });
            let over = matches!(piece, Piece::End(_));
            let state = if over { State::Over } else { State::Running(generation) };
            return Some(((index, Ok(event(piece))), (state, called)));
        }
    });
    events.boxed()
}

/// The same in the words of the runner protocol.
fn event(piece: Piece) -> GenerateEvent {
    match piece {
        Piece::Text { text, logprobs } => GenerateEvent::Text { text, logprobs },
        Piece::Thinking { text, logprobs } => GenerateEvent::Thinking { text, logprobs },
        Piece::ToolCall { call, logprobs } => {
            GenerateEvent::ToolCall { name: call.name, arguments: call.arguments, logprobs }
        }
        Piece::End(end) => GenerateEvent::Done { reason: end.reason, usage: end.usage, tokens: end.tokens },
    }
}

/// The requests for so many choices. Where one has a seed, each gets its own, or all would be the same.
pub(crate) fn several(request: &GenerateRequest, choices: u32) -> impl Iterator<Item = GenerateRequest> {
    (0..choices).map(move |choice| {
        let mut request = request.clone();
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(u64::from(choice)));
        request
    })
}
