//! The client of a runner process.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use protocol::{
    ContextRequest, EmbedReply, EmbedRequest, EvaluateOutput, EvaluateRequest, Failure, GenerateEvent, GenerateRequest,
    LoadReply, LoadRequest, RenderRequest, RerankReply, RerankRequest, Status, Text, TokenCount, TokenizeRequest,
    Tokens,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::Error;

/// How long a process may take until it serves.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait for the report of a process's end after a call broke off.
const LAST_MOMENTS: Duration = Duration::from_millis(200);

/// A runner process, as its users see it. Its supervisor decides how long it lives.
#[derive(Debug)]
pub struct Runner {
    socket: PathBuf,
    client: reqwest::Client,
    pid: u32,
    /// Processes that it has forked, once it has reported them.
    helpers: OnceLock<Vec<u32>>,
    fate: Fate,
}

/// Whether the process still serves.
#[derive(Clone, Debug)]
struct Fate {
    /// How the process ended.
    ended: watch::Receiver<Option<String>>,
    /// Whether a call broke off.
    broken: Arc<AtomicBool>,
}

impl Fate {
    /// Returns the reason why a call broke off. Usually the process has ended, which may be
    /// reported a moment later.
    async fn of_broken_call(&self, otherwise: Error) -> Error {
        self.broken.store(true, Ordering::Relaxed);
        let mut ended = self.ended.clone();
        match tokio::time::timeout(LAST_MOMENTS, ended.wait_for(Option::is_some)).await {
            Ok(Ok(end)) => Error::Died(end.clone().unwrap_or_default()),
            // The sender is gone without a report: the process was killed.
            Ok(Err(_)) => Error::Died("it was unloaded".to_owned()),
            Err(_) => otherwise,
        }
    }
}

impl Runner {
    pub(crate) fn new(socket: PathBuf, pid: u32, ended: watch::Receiver<Option<String>>) -> Result<Self, Error> {
        let client = reqwest::Client::builder().unix_socket(socket.as_path()).no_proxy().build();
        let client = client.map_err(|e| Error::Protocol(e.to_string()))?;
        Ok(Self { socket, client, pid, helpers: OnceLock::new(), fate: Fate { ended, broken: Arc::default() } })
    }

    /// Waits until the process serves. Returns its first status.
    #[cfg(not(feature = "schedules"))]
    pub(crate) async fn wait_until_it_serves(&self) -> Result<Status, Error> {
        let serves = async {
            let mut pause = Duration::from_millis(1);
            loop {
                match self.status().await {
                    Ok(status) => {
                        let _ = self.helpers.set(status.helpers.clone());
                        return Ok(status);
                    }
                    Err(_) if self.ended().is_some() => {
                        return Err(Error::Died(self.ended().unwrap_or_default()));
                    }
                    Err(_) => tokio::time::sleep(pause).await,
                }
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        };
        let late = |_| Error::Timeout { what: "start", seconds: START_TIMEOUT.as_secs() };
        tokio::time::timeout(START_TIMEOUT, serves).await.map_err(late)?
    }

    /// How the process ended, if it did.
    pub fn ended(&self) -> Option<String> {
        self.fate.ended.borrow().clone()
    }

    /// Whether the process has ended or a call broke off.
    pub(crate) fn has_failed(&self) -> bool {
        self.fate.broken.load(Ordering::Relaxed) || self.fate.ended.borrow().is_some()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Processes that the runner has forked, as far as it has reported them.
    pub(crate) fn helpers(&self) -> &[u32] {
        self.helpers.get().map_or(&[], Vec::as_slice)
    }

    /// Path of the socket that the process listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Loads a model; may be called once. The call has no timeout of its own, see
    /// [`Limits`](crate::Limits).
    #[cfg(not(feature = "schedules"))]
    pub(crate) async fn load(&self, request: &LoadRequest) -> Result<LoadReply, Error> {
        let response = self.post("load", request).await?;
        response.json().await.map_err(|e| Error::Protocol(e.to_string()))
    }

    /// Replaces the KV cache. No generation may run meanwhile.
    #[cfg(not(feature = "schedules"))]
    pub(crate) async fn rebuild(&self, request: &ContextRequest) -> Result<LoadReply, Error> {
        let response = self.post("context", request).await?;
        response.json().await.map_err(|e| Error::Protocol(e.to_string()))
    }

    /// Returns the current status of the process.
    pub(crate) async fn status(&self) -> reqwest::Result<Status> {
        self.client.get("http://runner/status").send().await?.error_for_status()?.json().await
    }

    /// Starts a generation. Events arrive as they happen; dropping them cancels the generation.
    pub async fn generate(&self, request: &GenerateRequest) -> Result<Events, Error> {
        let response = self.post("generate", request).await?;
        let (body, fate) = (response.bytes_stream().boxed(), self.fate.clone());
        Ok(Events { body, buffer: BytesMut::new(), finished: false, fate })
    }

    /// Tokenizes a text.
    pub async fn tokenize(&self, request: &TokenizeRequest) -> Result<Vec<u32>, Error> {
        let tokens: Tokens = self.ask("tokenize", request).await?;
        Ok(tokens.tokens)
    }

    /// Counts the tokens of the prompt of a generation, including the tokens before it.
    pub async fn count(&self, request: &GenerateRequest) -> Result<u64, Error> {
        let count: TokenCount = self.ask("count", request).await?;
        Ok(count.tokens)
    }

    /// Returns the text of the tokens.
    pub async fn detokenize(&self, tokens: Vec<u32>) -> Result<String, Error> {
        let text: Text = self.ask("detokenize", &Tokens { tokens }).await?;
        Ok(text.text)
    }

    /// Renders a conversation with the chat template.
    pub async fn render(&self, request: &RenderRequest) -> Result<String, Error> {
        let text: Text = self.ask("render", request).await?;
        Ok(text.text)
    }

    /// Computes the embeddings of texts. A reply with another number of vectors is a protocol
    /// error.
    pub async fn embed(&self, request: &EmbedRequest) -> Result<EmbedReply, Error> {
        let reply: EmbedReply = self.ask("embed", request).await?;
        let (got, expected) = (reply.embeddings.len(), request.inputs.len());
        if got != expected || reply.prompt_tokens.len() != expected {
            return Err(Error::Protocol(format!("{got} vectors for {expected} inputs")));
        }
        Ok(reply)
    }

    /// Scores how well documents answer a query. A reply with another number of scores is a
    /// protocol error.
    pub async fn rerank(&self, request: &RerankRequest) -> Result<RerankReply, Error> {
        let reply: RerankReply = self.ask("rerank", request).await?;
        let (got, expected) = (reply.scores.len(), request.documents.len());
        if got != expected || reply.prompt_tokens.len() != expected {
            return Err(Error::Protocol(format!("{got} scores for {expected} documents")));
        }
        Ok(reply)
    }

    /// Posts a document and returns the document in the reply.
    async fn ask<T: DeserializeOwned>(&self, call: &str, body: &impl Serialize) -> Result<T, Error> {
        let response = self.post(call, body).await?;
        response.json().await.map_err(|e| Error::Protocol(e.to_string()))
    }

    /// Returns the natural logarithm of the probability of each token except the first. The
    /// evaluation ends with the call, but possibly with a delay, so a sequence should be short
    /// enough for the next client to wait for.
    pub async fn logprobs(&self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let output = EvaluateOutput::Logprobs;
        let request = EvaluateRequest { tokens: tokens.to_vec(), stepwise: false, output };
        let response = self.post("evaluate", &request).await?;
        let bytes = response.bytes().await.map_err(|e| Error::Protocol(e.to_string()))?;
        let (numbers, rest) = bytes.as_chunks();
        if !rest.is_empty() || numbers.len() + 1 != tokens.len() {
            let reason = format!("{} bytes of log-probabilities for {} tokens", bytes.len(), tokens.len());
            return Err(Error::Protocol(reason));
        }
        Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }

    async fn post<B: Serialize>(&self, call: &str, body: &B) -> Result<reqwest::Response, Error> {
        let sent = self.client.post(format!("http://runner/{call}")).json(body).send().await;
        let response = match sent {
            Ok(response) => response,
            Err(error) => return Err(self.fate.of_broken_call(Error::Protocol(error.to_string())).await),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        match response.json::<Failure>().await {
            Ok(failure) => Err(Error::Refused { kind: failure.kind, message: failure.error }),
            Err(error) => Err(self.fate.of_broken_call(Error::Protocol(error.to_string())).await),
        }
    }
}

/// The events of a generation.
pub struct Events {
    body: futures_util::stream::BoxStream<'static, reqwest::Result<Bytes>>,
    buffer: BytesMut,
    finished: bool,
    /// The fate of the runner that generates.
    fate: Fate,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("finished", &self.finished).finish_non_exhaustive()
    }
}

impl Events {
    /// Returns the next event, or `None` after the last one. If the runner dies in between, that is
    /// an error, never a silent end.
    pub async fn next(&mut self) -> Option<Result<GenerateEvent, Error>> {
        if self.finished {
            return None;
        }
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                let event: Result<GenerateEvent, Error> =
                    serde_json::from_slice(&line).map_err(|e| Error::Protocol(e.to_string()));
                self.finished = matches!(event, Err(_) | Ok(GenerateEvent::Done { .. } | GenerateEvent::Error { .. }));
                return Some(event);
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => return Some(self.cut(error.to_string()).await),
                None => return Some(self.cut("the answer ended early".to_owned()).await),
            }
        }
    }

    async fn cut(&mut self, reason: String) -> Result<GenerateEvent, Error> {
        self.finished = true;
        Err(self.fate.of_broken_call(Error::Died(reason)).await)
    }
}
