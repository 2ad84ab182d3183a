//! A call of a model: the steps that all APIs share for a request that a runner answers.
//!
//! The call finds the model, merges the model's parameters into the request's options, leases a
//! runner, and sends the request. The result is a [`Generation`]. This code does not depend on the
//! client's API: each API translates its request into a [`GenerationOptions`] and a [`ChatInput`],
//! and the events into its own documents.
//!
//! A request can fail with a status until the first event of the runner. After that, a failure is
//! the last item of the generation. Dropping a [`Generation`], or the future that creates it,
//! cancels it.

mod lease;
mod meter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::ollama::{Options, Think};
use api::{ChatInput, GenerationOptions};
use content::Digest;
use content::operation::OperationError;
use protocol::{FailureKind, GenerateEvent, GenerateRequest, Message, Prompt};
use scheduler::{Context, Events, KeepAlive, Lease, Runner};
use serde_json::{Map, Value};

use crate::arriving::find_or_await;
use crate::clock;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::listed;
use crate::rates::Rates;
use crate::remote_pictures::fetched;
use library::{Capability, Model, ModelDefaults, Opening};

use meter::Meter;

/// Number of tokens at the start of a prompt that truncation keeps, unless configured.
const KEEP: u64 = 4;
/// An answer ends when it has repeated the same few tokens for this many tokens, unless configured.
/// Ollama ends an answer after 30 tokens of the same text, but tables of zeros and lines of dashes
/// are longer.
const REPEAT_LIMIT: u64 = 1024;

/// A request whose model and options are resolved.
#[derive(Debug)]
pub(crate) struct Call {
    begin: Instant,
    /// The model's name as the client wrote it.
    pub(crate) name: String,
    pub(crate) model: Model,
    own: Arc<ModelDefaults>,
    /// The options of the request, completed by the model's parameters.
    options: Options,
    /// Names of options in the request that do not exist.
    unknown_options: Vec<String>,
    /// The keep-alive in the request, if it has one.
    keep_alive: Option<KeepAlive>,
    /// Requests of the same domain share computed prefixes of prompts; different domains never
    /// share.
    domain: String,
    /// Whether the request takes no slot of conversations.
    is_aside: bool,
}

impl Call {
    /// Finds the model and completes the options of the request with the model's parameters.
    ///
    /// # Errors
    /// 400 for an invalid name, 404 if there is no such model and none is being pulled.
    pub(crate) async fn begin(daemon: &Daemon, name: &str, demand: &GenerationOptions) -> Result<Self, Failed> {
        let begin = Instant::now();
        let (model, own) = find_or_await(daemon, name).await?;
        let (parameters, unknown) = Options::read(&own.parameters).map_err(Failed::bad_request)?;
        if !unknown.is_empty() {
            tracing::warn!(model = model.name, ?unknown, "unknown parameters of the model are ignored");
        }
        let sampling = maker_sampling(&model.name, &own.sampling);
        let options = demand.options.clone().over(parameters).over(sampling).over(demand.fallback.clone());
        let keep_alive = demand.keep_alive.map(|keep| keep.0.map_or(KeepAlive::Forever, KeepAlive::For));
        let unknown_options = demand.unknown_options.clone();
        Ok(Self {
            begin,
            name: name.to_owned(),
            model,
            own,
            options,
            unknown_options,
            keep_alive,
            domain: String::new(),
            is_aside: false,
        })
    }

    /// Marks a request to tokenize, embed or rank, which runs beside conversations.
    #[must_use]
    pub(crate) fn aside(self) -> Self {
        Self { is_aside: true, ..self }
    }

    /// Sets the caller. Only requests of the same API key share computed prompts, unless the
    /// operator allows more. Otherwise the response time would reveal to one key which prompts
    /// another has sent.
    #[must_use]
    pub(crate) fn of(self, daemon: &Daemon, caller: &Caller) -> Self {
        let domain = if daemon.settings.shares_prefixes { String::new() } else { caller.name().to_owned() };
        Self { domain, ..self }
    }

    /// Checks that the model has a capability.
    ///
    /// # Errors
    /// 400, with Ollama's message.
    pub(crate) fn require(&self, capability: Capability) -> Result<(), Failed> {
        if self.own.capabilities.has(capability) {
            return Ok(());
        }
        Err(self.unsupported(capability.name()))
    }

    /// Checks that the model can generate text for `what` (`chat`, `generate`): refuses models for
    /// embedding or ranking only.
    ///
    /// # Errors
    /// 400, with Ollama's message.
    pub(crate) fn require_text(&self, what: &str) -> Result<(), Failed> {
        let has = |capability| self.own.capabilities.has(capability);
        let only = has(Capability::Embedding) || has(Capability::Rerank);
        // An unsupported architecture is no embedding model either; the load reports a better
        // error.
        if only && !has(Capability::Completion) { Err(self.unsupported(what)) } else { Ok(()) }
    }

    /// Checks that the model sees pictures. For a model with an unknown architecture, the load
    /// reports a better error.
    ///
    /// # Errors
    /// 400, with the reason if the model was made for pictures.
    pub(crate) fn require_vision(&self) -> Result<(), Failed> {
        let Some(reason) = self.model.parsed_facts.no_pictures_reason() else { return Ok(()) };
        let colon = if reason.is_empty() { "" } else { ": " };
        Err(Failed::bad_request(format!("this model does not support images{colon}{reason}")))
    }

    fn unsupported(&self, what: &str) -> Failed {
        Failed::bad_request(format!("\"{}\" does not support {what}", self.name))
    }

    /// Returns how much the model should think: as requested, or else with thinking on. `None` if
    /// the model cannot think.
    ///
    /// # Errors
    /// 400 if thinking is requested, not `optional`, and the model cannot think.
    pub(crate) fn thinking(&self, asked: Option<Think>, optional: bool) -> Result<Option<Think>, Failed> {
        if self.own.capabilities.has(Capability::Thinking) {
            return Ok(Some(asked.unwrap_or(Think::Flag(true))));
        }
        if !optional && asked.is_some_and(|think| think.is_wanted()) {
            return Err(self.unsupported(Capability::Thinking.name()));
        }
        Ok(None)
    }

    /// Lists the options of the request that do not exist, as response headers report them.
    pub(crate) fn ignored_options(&self) -> Vec<String> {
        listed(self.options_that_do_not_exist().collect())
    }

    fn options_that_do_not_exist(&self) -> impl Iterator<Item = String> {
        self.unknown_options.iter().map(|name| format!("option {name}"))
    }

    /// Lists the requested features that are ignored: options that do not exist, thinking if the
    /// model cannot think, and unsupported types of tools.
    pub(crate) fn ignored(&self, asked: &ChatInput) -> Vec<String> {
        let cannot_think = asked.thinking_is_optional && !self.own.capabilities.has(Capability::Thinking);
        let thinking = cannot_think && asked.think.as_ref().is_some_and(Think::is_wanted);
        let thinking = thinking.then(|| "thinking".to_owned());
        let tools = asked.omitted_tools.iter().map(|kind| format!("tool {kind}"));
        listed(thinking.into_iter().chain(tools).chain(self.options_that_do_not_exist()).collect())
    }

    /// Returns the conversation to render: the model's own messages, then the request's. A system
    /// prompt of the request replaces the model's.
    ///
    /// # Errors
    /// 400 if the model lacks a requested capability (chat, tools, thinking). The model's own
    /// messages cannot be read.
    pub(crate) fn with_own_messages(&self, asked: ChatInput) -> Result<ChatInput, Failed> {
        self.require_text("chat")?;
        if !asked.tools.is_empty() {
            self.require(Capability::Tools)?;
        }
        if !asked.pictures.is_empty() {
            self.require_vision()?;
        }
        let think = self.thinking(asked.think.clone(), asked.thinking_is_optional)?;
        let brings_system = asked.messages.first().is_some_and(|message| message.role == "system");
        let Opening { system, messages } = self.own_opening()?;
        let system = system.filter(|_| !brings_system).map(|text| message("system", text));
        let messages = system.into_iter().chain(messages).chain(asked.messages).collect();
        Ok(ChatInput { messages, think, ..asked })
    }

    /// Returns the messages before a single prompt: the system prompt of the request, or else the
    /// model's, then the model's messages.
    ///
    /// # Errors
    /// The model's own messages cannot be read.
    pub(crate) fn opening(&self, system: Option<String>) -> Result<Vec<Message>, Failed> {
        let Opening { system: own, messages } = self.own_opening()?;
        let system = system.filter(|text| !text.is_empty()).or(own).map(|text| message("system", text));
        Ok(system.into_iter().chain(messages).collect())
    }

    fn own_opening(&self) -> Result<Opening, Failed> {
        self.own.opening.clone().map_err(|reason| Failed::from(OperationError::text(reason)))
    }

    /// Returns the digest of the model's manifest.
    pub(crate) fn digest(&self) -> Digest {
        *self.model.manifest.digest()
    }

    /// Returns the requested context.
    pub(crate) fn context(&self, daemon: &Daemon) -> Context {
        daemon.context(&self.model, self.options.num_ctx)
    }

    /// Builds the request to the runner. Thinking is separated from the answer, unless the prompt
    /// turns thinking off.
    pub(crate) fn request(&self, daemon: &Daemon, prompt: Prompt, demand: &GenerationOptions) -> GenerateRequest {
        let options = &self.options;
        let asks_not_to =
            matches!(&prompt, Prompt::Chat(chat) if chat.variables.get("thinking") == Some(&false.into()));
        let mut request = GenerateRequest {
            sampling: options.sampling(self.context(daemon).tokens()),
            stop: options.stop.clone().unwrap_or_default(),
            max_tokens: options.max_tokens(),
            keep: options.num_keep.unwrap_or(KEEP),
            repeat_limit: options.repeat_limit.unwrap_or(REPEAT_LIMIT),
            thinking: matches!(prompt, Prompt::Chat(_))
                && self.own.capabilities.has(Capability::Thinking)
                && !asks_not_to,
            domain: self.domain.clone(),
            ..GenerateRequest::new(prompt)
        };
        demand.apply(&mut request);
        request
    }

    /// Builds the request to the runner for a conversation and its pictures.
    ///
    /// # Errors
    /// 400 if a picture cannot be fetched.
    pub(crate) async fn chat_request(
        &self,
        daemon: &Daemon,
        mut input: ChatInput,
        demand: &GenerationOptions,
    ) -> Result<GenerateRequest, Failed> {
        let pictures = fetched(daemon, std::mem::take(&mut input.pictures)).await?;
        Ok(GenerateRequest { pictures, ..self.request(daemon, input.prompt(clock::now()), demand) })
    }
}

/// A loaded model, leased while this or one of its generations lives. Clones share the lease.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    lease: Arc<Lease>,
    /// A generation without a limit ends after this many contexts of tokens.
    contexts: u64,
    /// Name of the model, for messages.
    model: String,
    rates: Rates,
    begin: Instant,
    load: Duration,
}

impl Ready {
    /// Returns the runner, for calls that are not generations.
    pub(crate) fn runner(&self) -> &Runner {
        self.lease.runner()
    }

    /// Returns the context length of a sequence, in tokens.
    pub(crate) fn context(&self) -> u64 {
        self.lease.reply().context
    }

    /// Returns the clock of the request.
    pub(crate) fn timing(&self) -> Timing {
        Timing { begin: self.begin, load: self.load }
    }

    /// Starts a generation and waits for its first event. May be called several times; each call
    /// starts a separate generation.
    ///
    /// # Errors
    /// The runner's error before any text: 400 if the request is at fault, else 500.
    pub(crate) async fn generate(&self, mut request: GenerateRequest) -> Result<Generation, Failed> {
        if request.shift && request.max_tokens.is_none() {
            request.max_tokens = Some(self.context().saturating_mul(self.contexts));
        }
        let mut meter = Meter::new(self.model.clone(), self.rates.clone());
        let begun = self.first_word(&request).await.inspect_err(|_| meter.failed());
        let (first, events) = begun?;
        Ok(Generation::new(self.clone(), first, events, meter))
    }

    async fn first_word(&self, request: &GenerateRequest) -> Result<(GenerateEvent, Events), Failed> {
        let mut events = self.runner().generate(request).await?;
        match events.next().await {
            Some(Ok(GenerateEvent::Error { error, kind })) => Err(refused(error, kind)),
            Some(event) => Ok((event?, events)),
            None => Err(OperationError::text("the runner said nothing").into()),
        }
    }
}

/// A running generation. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Generation {
    /// Holds the lease.
    _ready: Ready,
    first: Option<GenerateEvent>,
    events: Events,
    meter: Meter,
}

/// The clock of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    begin: Instant,
    load: Duration,
}

impl Timing {
    /// Returns the durations until now.
    pub(crate) fn now(&self) -> Times {
        Times { total: self.begin.elapsed(), load: self.load }
    }
}

/// The duration of a generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// From the request's arrival until now.
    pub(crate) total: Duration,
    /// From the request's arrival until the model was loaded.
    pub(crate) load: Duration,
}

impl Generation {
    /// Creates a generation whose first event has arrived.
    fn new(ready: Ready, first: GenerateEvent, events: Events, meter: Meter) -> Self {
        meter.first_word(ready.begin.elapsed().as_secs_f64());
        Self { _ready: ready, first: Some(first), events, meter }
    }

    /// Returns the next event, which is never an error event. Must not be called after the end or
    /// an error. The future is cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// The runner died or failed. Earlier events remain valid.
    pub(crate) async fn next(&mut self) -> Result<GenerateEvent, Failed> {
        let event = match self.first.take() {
            Some(event) => Ok(event),
            None => match self.events.next().await {
                Some(event) => event.map_err(Failed::from),
                None => Err(OperationError::text("the runner ended without an answer").into()),
            },
        };
        let event = event.and_then(|event| match event {
            GenerateEvent::Error { error, kind } => Err(refused(error, kind)),
            event => Ok(event),
        });
        match &event {
            Ok(GenerateEvent::Done { reason, usage, .. }) => self.meter.done(*reason, usage),
            Ok(_) => self.meter.word(),
            Err(_) => self.meter.failed(),
        }
        event
    }
}

/// Returns the sampling options that the model's publisher recommends. Each unusable value is
/// dropped with a warning.
fn maker_sampling(model: &str, said: &Map<String, Value>) -> Options {
    said.iter().fold(Options::default(), |options, (name, value)| {
        match Options::read(&Map::from_iter([(name.clone(), value.clone())])) {
            Ok((one, _)) => options.over(one),
            Err(reason) => {
                tracing::warn!(model, "the model's own sampling: {reason}; it is left out");
                options
            }
        }
    })
}

/// Creates a message that consists of text only.
pub(crate) fn message(role: &str, content: String) -> Message {
    Message { role: role.to_owned(), content, rest: serde_json::Map::new() }
}

/// Converts a refusal of the runner; the message is the runner's.
fn refused(message: String, kind: FailureKind) -> Failed {
    scheduler::Error::Refused { kind, message }.into()
}
