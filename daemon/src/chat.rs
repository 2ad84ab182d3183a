//! A chat, from the translated request to the response.
//!
//! [`answer`] is the whole journey for all APIs. An API translates its request to a [`Chat`], and
//! contributes the documents of the response as a [`ChatFormat`]. Ollama's `/api/generate`, whose
//! prompt need not be a chat, uses the second half, [`respond`].

use api::{ChatInput, CollectedAnswer, GenerationOptions};
use axum::response::Response;
use protocol::{GenerateEvent, GenerateRequest};

use crate::call::{Call, Times, Timing};
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::{attested, truncated, with_ignored};
use crate::parallel_generations::{Choices, several};
use crate::stream::BodySender;

/// A chat request of any API.
pub(crate) struct Chat {
    /// Name of the model as the client wrote it.
    pub(crate) model: String,
    /// The conversation to continue.
    pub(crate) input: ChatInput,
    /// How to continue it.
    pub(crate) options: GenerationOptions,
    /// Number of answers.
    pub(crate) choices: u32,
    /// Whether to stream the answers.
    pub(crate) streams: bool,
}

/// The documents of an API for answers.
pub(crate) trait ChatFormat: Send + 'static {
    /// Creates the response to a request that streams, and the sender of its body.
    fn body() -> (BodySender, Response);
    /// Returns the text before the first event.
    fn begin(&mut self) -> String;
    /// Sees an event of a response that does not stream.
    fn observe(&mut self, _event: &GenerateEvent) {}
    /// Returns the text for an event of a choice.
    fn event(&mut self, choice: u32, event: GenerateEvent, times: Times) -> String;
    /// Returns the response to a request that does not stream. The answers are complete.
    fn whole(&mut self, answers: Vec<CollectedAnswer>, times: Times) -> Response;
}

/// Answers a chat: finds the model, adds its own messages, leases a runner, and generates.
///
/// # Errors
/// 404 if there is no such model, 400 if it lacks a requested capability, or the error of the load
/// or of the runner before its first event.
pub(crate) async fn answer<F: ChatFormat>(
    daemon: &Daemon,
    caller: &Caller,
    chat: Chat,
    format: impl FnOnce(&Call) -> F,
) -> Result<Response, Failed> {
    let Chat { model, input, options, choices, streams } = chat;
    let call = Call::begin(daemon, &model, &options).await?.of(daemon, caller);
    let ignored = call.ignored(&input);
    let request = call.chat_request(daemon, call.with_own_messages(input)?, &options).await?;
    let format = format(&call);
    let response = respond(daemon, &call, request, Answers { choices, streams }, &options, format).await?;
    Ok(with_ignored(attested(response, &call.digest()), &ignored))
}

/// The requested answers.
#[derive(Clone, Copy)]
pub(crate) struct Answers {
    /// Number of answers.
    pub(crate) choices: u32,
    /// Whether to stream them.
    pub(crate) streams: bool,
}

/// Leases a runner, generates, and returns the answers.
///
/// # Errors
/// The error of the load, or of the runner before its first event.
pub(crate) async fn respond<F: ChatFormat>(
    daemon: &Daemon,
    call: &Call,
    request: GenerateRequest,
    Answers { choices, streams }: Answers,
    options: &GenerationOptions,
    format: F,
) -> Result<Response, Failed> {
    let ready = call.ready_for(daemon, std::slice::from_ref(&request)).await?;
    let timing = ready.timing();
    let generations = Choices::begin(ready, several(request, choices).collect(), options).await?;
    if streams { Ok(streamed(generations, timing, format)) } else { whole(generations, choices, timing, format).await }
}

/// Returns a response that streams the events of generations, until they end or the client
/// disconnects.
fn streamed<F: ChatFormat>(generations: Choices, timing: Timing, mut format: F) -> Response {
    let (pieces, response) = F::body();
    tokio::spawn(async move {
        if pieces.send(format.begin()).await {
            generations.tell(pieces, |choice, event| format.event(choice, event, timing.now())).await;
        }
    });
    response
}

/// Waits for the ends of generations, and returns their answers as one document.
///
/// # Errors
/// The first failure of a generation.
async fn whole<F: ChatFormat>(
    generations: Choices,
    choices: u32,
    timing: Timing,
    mut format: F,
) -> Result<Response, Failed> {
    let answers = generations.answers(choices as usize, |event| format.observe(event)).await?;
    // All choices have the same prompt.
    let dropped = answers.first().map_or(0, |answer| answer.usage.truncated_tokens);
    Ok(truncated(format.whole(answers, timing.now()), dropped))
}
