//! Webhooks: requests that tell other servers what happened in the registry, as `CloudEvents` 1.0
//! in JSON (<https://github.com/cloudevents/spec>, structured mode).
//!
//! Each webhook has a queue and a task, which sends one event after the other. An event that the
//! receiver does not take is repeated, with growing pauses, for an hour; events keep their `id`, so
//! that a receiver can recognize them. The queue is in memory: a process that is killed loses the
//! events that wait, and a full queue refuses new ones. `lode_webhook_events_total` counts both.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use content::operation::{Context, Result, Unclassified};
use registry::RepositoryName;
use registry::server::{JournalEntry, NamePattern, Operation, matches_repository};
use reqwest::{Client, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::audit_log::rfc3339;

/// Maximum number of events that wait for a webhook.
const QUEUE: usize = 10_000;
/// How long an event is repeated.
const PATIENCE: Duration = Duration::from_hours(1);
/// The pause after the first failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(2));
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A manifest was pushed.
    Push,
    /// A manifest was pulled.
    Pull,
    /// A tag or manifest was deleted.
    Delete,
}

impl EventKind {
    /// Parses the name in a configuration.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "push" => Some(Self::Push),
            "pull" => Some(Self::Pull),
            "delete" => Some(Self::Delete),
            _ => None,
        }
    }

    fn of(operation: Operation) -> Option<Self> {
        match operation {
            Operation::PushManifest => Some(Self::Push),
            Operation::PullManifest => Some(Self::Pull),
            Operation::DeleteManifest => Some(Self::Delete),
            _ => None,
        }
    }

    /// The `type` of the event.
    fn event_type(self) -> &'static str {
        match self {
            Self::Push => "lode.registry.manifest.pushed",
            Self::Pull => "lode.registry.manifest.pulled",
            Self::Delete => "lode.registry.manifest.deleted",
        }
    }
}

/// Settings of a webhook.
#[derive(Clone)]
pub struct WebhookSettings {
    /// The URL that gets the events.
    pub url: reqwest::Url,
    /// The kinds of events.
    pub events: Vec<EventKind>,
    /// The repositories; empty means all.
    pub repositories: Vec<NamePattern>,
    /// The file with the value of the header `Authorization`.
    pub authorization_file: Option<PathBuf>,
    /// The `source` of the events, which names this registry.
    pub source: String,
}

/// The URL may contain a secret.
impl fmt::Debug for WebhookSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSettings").field("url", &shown(&self.url)).finish_non_exhaustive()
    }
}

/// The queues of all webhooks.
#[derive(Debug)]
pub(super) struct Webhooks(Vec<(WebhookSettings, mpsc::Sender<Value>)>);

/// The task of a webhook.
pub(super) struct Webhook {
    /// The URL without parts that may be secret.
    url: String,
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

/// Starts the webhooks.
pub(super) fn start(settings: &[WebhookSettings]) -> Result<(Webhooks, Vec<Webhook>)> {
    let (mut queues, mut tasks) = (Vec::new(), Vec::new());
    for webhook in settings {
        let client = client(webhook)?;
        let (queue, events) = mpsc::channel(QUEUE);
        let (stop, stopped) = watch::channel(false);
        let sender = Sender { client, url: webhook.url.clone(), stopped };
        tasks.push(Webhook { url: shown(&webhook.url), task: tokio::spawn(sender.run(events)), stop });
        queues.push((webhook.clone(), queue));
    }
    Ok((Webhooks(queues), tasks))
}

/// Sends the events that wait, once each, for `limit` at most.
pub(super) async fn finish(webhooks: Vec<Webhook>, limit: Duration) {
    let deadline = tokio::time::Instant::now() + limit;
    for webhook in &webhooks {
        // The task may have ended after a panic.
        let _ = webhook.stop.send(true);
    }
    for mut webhook in webhooks {
        if tokio::time::timeout_at(deadline, &mut webhook.task).await.is_err() {
            count("lost");
            tracing::error!("one or more events for {} were lost: the time to stop is over", webhook.url);
            webhook.task.abort();
        }
    }
}

fn client(webhook: &WebhookSettings) -> Result<Client> {
    let mut headers = header::HeaderMap::new();
    if let Some(path) = &webhook.authorization_file {
        let problem = || format!("`{}`, the authorization of the webhook {}", path.display(), shown(&webhook.url));
        let text = std::fs::read_to_string(path).internal().with_context(problem)?;
        let mut value = header::HeaderValue::from_str(text.trim()).internal().with_context(problem)?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    // A redirect would lose the body of the request.
    let policy = reqwest::redirect::Policy::none();
    Client::builder().default_headers(headers).timeout(TIMEOUT).redirect(policy).build().internal()
}

/// The URL without parts that may be secret.
fn shown(url: &reqwest::Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

impl Webhooks {
    /// Queues the event of a request for the webhooks that want it.
    pub(super) fn notify(&self, entry: &JournalEntry) {
        let Some(kind) = EventKind::of(entry.operation).filter(|_| entry.succeeded()) else { return };
        let Some(repository) = entry.repository.as_deref() else { return };
        for (settings, queue) in &self.0 {
            if settings.events.contains(&kind)
                && is_wanted(&settings.repositories, repository)
                && let Err(refused) = queue.try_send(event(kind, &settings.source, repository, entry))
            {
                count("lost");
                let reason = match refused {
                    TrySendError::Full(_) => format!("{QUEUE} wait already"),
                    TrySendError::Closed(_) => "the registry stops".to_owned(),
                };
                tracing::error!(repository, "an event for {} was lost: {reason}", shown(&settings.url));
            }
        }
    }
}

fn is_wanted(patterns: &[NamePattern], repository: &str) -> bool {
    patterns.is_empty() || RepositoryName::parse(repository).is_ok_and(|name| matches_repository(patterns, &name))
}

fn event(kind: EventKind, source: &str, repository: &str, entry: &JournalEntry) -> Value {
    let reference = entry.reference.as_deref().unwrap_or_default();
    let separator = if reference.contains(':') { '@' } else { ':' };
    let tag = (!reference.contains(':')).then_some(reference);
    json!({
        "specversion": "1.0",
        "id": format!("{:032x}", rand::random::<u128>()),
        "source": source,
        "type": kind.event_type(),
        "subject": format!("{repository}{separator}{reference}"),
        "time": rfc3339(entry.time),
        "datacontenttype": "application/json",
        "data": {
            "repository": repository,
            "tag": tag,
            "tags": entry.tags,
            "cause": entry.cause.as_str(),
            "digest": entry.digest.map(|digest| digest.to_string()),
            "media_type": entry.media_type,
            "user": entry.user,
            "peer": entry.peer.map(|peer| peer.ip().to_canonical().to_string()),
            "user_agent": entry.user_agent,
        },
    })
}

fn count(result: &'static str) {
    metrics::counter!("lode_webhook_events_total", "result" => result).increment(1);
}

/// The sending end of a webhook.
struct Sender {
    client: Client,
    url: reqwest::Url,
    stopped: watch::Receiver<bool>,
}

/// Why an event was not taken.
enum Refused {
    /// Another attempt may succeed.
    Temporary(String),
    /// The receiver does not want it.
    Final(String),
}

impl Sender {
    async fn run(mut self, mut events: mpsc::Receiver<Value>) {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                _ = self.stopped.wait_for(|stopped| *stopped) => break,
            };
            let Some(event) = event else { return };
            self.deliver(&event).await;
        }
        events.close();
        while let Some(event) = events.recv().await {
            self.deliver(&event).await;
        }
    }

    /// Sends an event until the receiver takes it. After the registry was told to stop, there is
    /// one attempt.
    async fn deliver(&mut self, event: &Value) {
        let (begin, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            let reason = match self.send(event).await {
                Ok(()) => return count("sent"),
                Err(Refused::Final(reason)) => return self.give_up(event, &reason),
                Err(Refused::Temporary(reason)) => reason,
            };
            if *self.stopped.borrow() || begin.elapsed() + pause > PATIENCE {
                return self.give_up(event, &reason);
            }
            tracing::warn!("the webhook {} failed and is repeated in {pause:?}: {reason}", shown(&self.url));
            count("repeated");
            // The end of the registry ends the pause.
            let _ = tokio::time::timeout(pause, self.stopped.wait_for(|stopped| *stopped)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn give_up(&self, event: &Value, reason: &str) {
        count("lost");
        tracing::error!("an event for {} was lost: {reason}; the event: {event}", shown(&self.url));
    }

    async fn send(&self, event: &Value) -> std::result::Result<(), Refused> {
        let request = self.client.post(self.url.clone()).body(event.to_string());
        let sent = request.header(header::CONTENT_TYPE, "application/cloudevents+json").send().await;
        let response =
            sent.map_err(|error| Refused::Temporary(content::text::error_with_causes(&error.without_url())))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let reason = format!("it answered {status}");
        let may_recover =
            status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        Err(if may_recover { Refused::Temporary(reason) } else { Refused::Final(reason) })
    }
}
