//! The generations of one request. Most requests have one; `n` and lists of prompts in `OpenAI`'s
//! API have several.
//!
//! [`Choices::begin`] starts all of them; the runner decides which of them wait. It waits for the
//! first event of any of them, not of each, because the last ones may start only when the first
//! ones have ended.

use api::{CollectedAnswer, GenerationOptions};
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll};
use protocol::{GenerateEvent, GenerateRequest};

use crate::call::{Generation, Ready};
use crate::error::Failed;
use crate::stream::BodySender;

/// The merged events of several generations.
pub(crate) struct Choices {
    streams: SelectAll<BoxStream<'static, Told>>,
    first: Option<Told>,
}

/// The index of a choice, and its event or failure.
type Told = (u32, Result<GenerateEvent, Failed>);

impl Choices {
    /// Starts all generations and waits for the first event of any of them.
    ///
    /// # Errors
    /// The runner's error before any text.
    pub(crate) async fn begin(
        ready: Ready,
        requests: Vec<GenerateRequest>,
        demand: &GenerationOptions,
    ) -> Result<Self, Failed> {
        let one_call = demand.one_tool_call;
        let stream = |(index, request)| choice(ready.clone(), index, request, one_call);
        let mut streams: SelectAll<_> = (0..).zip(requests).map(stream).collect();
        match streams.next().await {
            Some((_, Err(failed))) => Err(failed),
            first => Ok(Self { streams, first }),
        }
    }

    /// Returns the next event of any generation. There are no more after an error, or after the end
    /// of all.
    async fn next(&mut self) -> Option<Told> {
        match self.first.take() {
            Some(first) => Some(first),
            None => self.streams.next().await,
        }
    }

    /// Returns all answers in order, once they are complete. `observe` sees their events.
    ///
    /// # Errors
    /// The first failure; the remaining generations are cancelled.
    pub(crate) async fn answers(
        mut self,
        choices: usize,
        mut observe: impl FnMut(&GenerateEvent),
    ) -> Result<Vec<CollectedAnswer>, Failed> {
        let mut answers = vec![CollectedAnswer::default(); choices];
        while let Some((choice, event)) = self.next().await {
            let event = event?;
            observe(&event);
            if let Some(answer) = answers.get_mut(choice as usize) {
                answer.push(event);
            }
        }
        Ok(answers)
    }

    /// Sends all events as text, until the end or until the client disconnects.
    pub(crate) async fn tell(mut self, pieces: BodySender, mut told: impl FnMut(u32, GenerateEvent) -> String) {
        loop {
            // The runner may hold text back for a long time; this notices a client that disconnects
            // meanwhile.
            let next = tokio::select! {
                next = self.next() => next,
                () = pieces.closed() => return,
            };
            let Some((choice, event)) = next else { return };
            let failed = event.is_err();
            let event = event.unwrap_or_else(|failed| {
                tracing::warn!("{}", failed.message);
                failed.into_event()
            });
            if !pieces.send(told(choice, event)).await {
                tracing::debug!("the client went away");
                return;
            }
            if failed {
                return;
            }
        }
    }
}

/// The state of a choice.
enum ChoiceState {
    Waiting(Ready, Box<GenerateRequest>),
    Running(Box<Generation>),
    Over,
}

fn choice(ready: Ready, index: u32, request: GenerateRequest, one_call: bool) -> BoxStream<'static, Told> {
    let begin = (ChoiceState::Waiting(ready, Box::new(request)), false);
    let events = futures_util::stream::unfold(begin, move |(state, called)| async move {
        let mut generation = match state {
            ChoiceState::Over => return None,
            ChoiceState::Running(generation) => generation,
            ChoiceState::Waiting(ready, request) => match ready.generate(*request).await {
                Ok(generation) => Box::new(generation),
                Err(failed) => return Some(((index, Err(failed)), (ChoiceState::Over, called))),
            },
        };
        loop {
            let event = match generation.next().await {
                Ok(event) => event,
                Err(failed) => return Some(((index, Err(failed)), (ChoiceState::Over, called))),
            };
            if one_call && called && matches!(event, GenerateEvent::ToolCall { .. }) {
                continue;
            }
            let called = called || matches!(event, GenerateEvent::ToolCall { .. });
            let over = matches!(event, GenerateEvent::Done { .. });
            let state = if over { ChoiceState::Over } else { ChoiceState::Running(generation) };
            return Some(((index, Ok(event)), (state, called)));
        }
    });
    events.boxed()
}

/// Returns the requests for `choices` choices. If the request has a seed, each choice gets a
/// different one, since all answers would be equal otherwise.
pub(crate) fn several(request: GenerateRequest, choices: u32) -> impl Iterator<Item = GenerateRequest> {
    (0..choices).zip(std::iter::repeat_n(request, choices as usize)).map(|(choice, mut request)| {
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(u64::from(choice)));
        request
    })
}
