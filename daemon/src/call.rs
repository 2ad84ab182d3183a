//! A call of a model: what every dialect does with a request that a runner is to answer.
//!
//! The model is found, its own parameters are put below the request's, a runner is leased, and the request goes there.
//! What comes back is a [`Generation`]. Nothing here knows which API the client speaks: a dialect makes a [`Demand`] and a
//! [`Dialogue`] of its request, and its own documents of the events.
//!
//! A request fails with a status until the runner has said its first word; after that a failure is the last thing that a
//! generation yields. Whoever drops a [`Generation`], or the future that makes it, cancels it.

mod lease;
mod meter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::ollama::{Options, Think};
use api::{Answer, Demand, Dialogue};
use content::Digest;
use protocol::{FailureKind, GenerateEvent, GenerateRequest, Message, Prompt};
use scheduler::{Context, Events, KeepAlive, Lease, Runner};
use serde_json::{Map, Value};

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::guard::Caller;
use crate::headers::listed;
use crate::models::find_called;
use crate::rates::Rates;
use library::{Capability, Model, Opening, Own};

use meter::Meter;

/// How many of a prompt's first tokens stay when its beginning is dropped, where nobody says.
const KEEP: u64 = 4;
/// An answer ends when so many tokens were the same few again and again, where nobody says. Ollama ends one after 30 tokens with the
/// same text; tables of zeros and lines of dashes are longer.
const REPEAT_LIMIT: u64 = 1024;

/// A request whose model and options are known.
#[derive(Debug)]
pub(crate) struct Call {
    begin: Instant,
    /// The model's name as the client wrote it.
    pub(crate) name: String,
    pub(crate) model: Model,
    own: Arc<Own>,
    /// The request's options, and the model's parameters where it says nothing.
    options: Options,
    /// Names of options in the request that no option has.
    unknown_options: Vec<String>,
    /// Where the request says.
    keep_alive: Option<KeepAlive>,
    /// Prompts with the same domain share prefixes that were computed; others do not.
    domain: String,
    /// It takes no slot of conversations.
    is_aside: bool,
}

impl Call {
    /// Finds the model and puts its parameters below the options of the request.
    ///
    /// # Errors
    /// 400 for a name that is none, 404 where there is no such model.
    pub(crate) async fn begin(daemon: &Daemon, name: &str, demand: &Demand) -> Result<Self, Failed> {
        let begin = Instant::now();
        let (model, own) = find_called(daemon, name).await?;
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

    /// The same for a request that cuts texts into tokens, or embeds or ranks them: it goes on beside conversations.
    #[must_use]
    pub(crate) fn aside(self) -> Self {
        Self { is_aside: true, ..self }
    }

    /// The same for a caller: what is computed of the prompt is shared with requests of the same API key only, unless the
    /// operator allows more. How long a prompt takes would tell one key what another has sent.
    #[must_use]
    pub(crate) fn of(self, daemon: &Daemon, caller: &Caller) -> Self {
        let domain = if daemon.settings.shares_prefixes { String::new() } else { caller.name().to_owned() };
        Self { domain, ..self }
    }

    /// Refuses what the model cannot do.
    ///
    /// # Errors
    /// 400, in Ollama's words.
    pub(crate) fn require(&self, capability: Capability) -> Result<(), Failed> {
        if self.own.capabilities.has(capability) {
            return Ok(());
        }
        Err(self.unsupported(capability.name()))
    }

    /// Refuses to write (`what`: `chat`, `generate`) with a model that was made for embedding or for ranking.
    ///
    /// # Errors
    /// 400, in Ollama's words.
    pub(crate) fn require_text(&self, what: &str) -> Result<(), Failed> {
        let has = |capability| self.own.capabilities.has(capability);
        let only = has(Capability::Embedding) || has(Capability::Rerank);
        // An architecture that nobody runs is no embedding model either; the load says more about it.
        if only && !has(Capability::Completion) { Err(self.unsupported(what)) } else { Ok(()) }
    }

    fn unsupported(&self, what: &str) -> Failed {
        Failed::bad_request(format!("\"{}\" does not support {what}", self.name))
    }

    /// How much the model is to think: what is asked for, else as it likes where it can.
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

    /// Options of the request that do not exist, as they are told.
    pub(crate) fn ignored_options(&self) -> Vec<String> {
        listed(self.options_that_do_not_exist().collect())
    }

    fn options_that_do_not_exist(&self) -> impl Iterator<Item = String> {
        self.unknown_options.iter().map(|name| format!("option {name}"))
    }

    /// Features that the request asks for and that are ignored: options that do not exist, thinking that this model does not do,
    /// types of tools that the daemon does not have.
    pub(crate) fn ignored(&self, asked: &Dialogue) -> Vec<String> {
        let cannot_think = asked.thinking_is_optional && !self.own.capabilities.has(Capability::Thinking);
        let thinking = cannot_think && asked.think.as_ref().is_some_and(Think::is_wanted);
        let thinking = thinking.then(|| "thinking".to_owned());
        let tools = asked.omitted_tools.iter().map(|kind| format!("tool {kind}"));
        listed(thinking.into_iter().chain(tools).chain(self.options_that_do_not_exist()).collect())
    }

    /// What is to be rendered: the request's messages after the model's own. A system prompt of the request replaces the
    /// model's.
    ///
    /// # Errors
    /// 400 where the model cannot chat, call tools or think, and is asked to; its own messages cannot be read.
    pub(crate) fn dialogue(&self, asked: Dialogue) -> Result<Dialogue, Failed> {
        self.require_text("chat")?;
        if !asked.tools.is_empty() {
            self.require(Capability::Tools)?;
        }
        let think = self.thinking(asked.think.clone(), asked.thinking_is_optional)?;
        let brings_system = asked.messages.first().is_some_and(|message| message.role == "system");
        let Opening { system, messages } = self.own_opening()?;
        let system = system.filter(|_| !brings_system).map(|text| message("system", text));
        let messages = system.into_iter().chain(messages).chain(asked.messages).collect();
        Ok(Dialogue { messages, think, ..asked })
    }

    /// What precedes a single prompt: the system prompt of the request, else the model's, then the model's messages.
    ///
    /// # Errors
    /// The model's own cannot be read.
    pub(crate) fn opening(&self, system: Option<String>) -> Result<Vec<Message>, Failed> {
        let Opening { system: own, messages } = self.own_opening()?;
        let system = system.filter(|text| !text.is_empty()).or(own).map(|text| message("system", text));
        Ok(system.into_iter().chain(messages).collect())
    }

    fn own_opening(&self) -> Result<Opening, Failed> {
        self.own.opening.clone().map_err(|reason| Failed::from(anyhow::anyhow!(reason)))
    }

    /// Which model answers.
    pub(crate) fn digest(&self) -> Digest {
        *self.model.manifest.digest()
    }

    /// The context that is asked for.
    pub(crate) fn context(&self, daemon: &Daemon) -> Context {
        daemon.context(&self.model, self.options.num_ctx)
    }

    /// A request for this prompt, as it is demanded: thinking is told apart unless the prompt asks for none.
    pub(crate) fn request(&self, daemon: &Daemon, prompt: Prompt, demand: &Demand) -> GenerateRequest {
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
}

/// A loaded model, leased for as long as this or a generation of it lives. Clones share the lease.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    lease: Arc<Lease>,
    /// Contexts after which a generation without a limit ends.
    contexts: u64,
    /// The model's name, for people.
    model: String,
    rates: Rates,
    begin: Instant,
    load: Duration,
}

impl Ready {
    /// The runner, for what is not a generation.
    pub(crate) fn runner(&self) -> &Runner {
        self.lease.runner()
    }

    /// Tokens that a sequence may have.
    pub(crate) fn context(&self) -> u64 {
        self.lease.reply().context
    }

    /// Time from the request's arrival until the model was there.
    pub(crate) fn load(&self) -> Duration {
        self.load
    }

    /// Time since the request's arrival.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Begins to generate, and waits for the runner's first word. May be called several times: each is a generation.
    ///
    /// # Errors
    /// What the runner says before any text: 400 where the request is at fault, else 500.
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
            None => Err(anyhow::anyhow!("the runner said nothing").into()),
        }
    }
}

/// A generation under way. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Generation {
    ready: Ready,
    first: Option<GenerateEvent>,
    events: Events,
    meter: Meter,
}

/// How long a generation has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// From the request's arrival until now.
    pub(crate) total: Duration,
    /// From the request's arrival until the model was there.
    pub(crate) load: Duration,
}

impl Generation {
    /// One that has said its first word.
    fn new(ready: Ready, first: GenerateEvent, events: Events, meter: Meter) -> Self {
        meter.first_word(ready.elapsed().as_secs_f64());
        Self { ready, first: Some(first), events, meter }
    }

    /// The next event, which is never an error. After the end or an error there is nothing to ask for. Nothing is lost where
    /// the future is dropped before it is ready, so it may wait beside something else.
    ///
    /// # Errors
    /// The runner died or gave up; what was yielded before is true all the same.
    pub(crate) async fn next(&mut self) -> Result<GenerateEvent, Failed> {
        let event = match self.first.take() {
            Some(event) => Ok(event),
            None => match self.events.next().await {
                Some(event) => event.map_err(Failed::from),
                None => Err(anyhow::anyhow!("the runner ended without an answer").into()),
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

    /// How long it has taken so far.
    pub(crate) fn times(&self) -> Times {
        Times { total: self.ready.elapsed(), load: self.ready.load() }
    }

    /// All of it, once it is over.
    ///
    /// # Errors
    /// As [`next`](Self::next); nothing is told of a generation that did not reach its end.
    pub(crate) async fn whole(&mut self) -> Result<Answer, Failed> {
        let mut answer = Answer::default();
        while answer.reason.is_none() {
            answer.push(self.next().await?);
        }
        Ok(answer)
    }
}

/// What the model's maker says of sampling. Values that cannot be used are left out one by one.
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

/// A message that is only text.
pub(crate) fn message(role: &str, content: String) -> Message {
    Message { role: role.to_owned(), content, rest: serde_json::Map::new() }
}

/// What a runner refused, in its own words.
fn refused(message: String, kind: FailureKind) -> Failed {
    scheduler::Error::Refused { kind, message }.into()
}
