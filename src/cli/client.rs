//! The HTTP client for the daemon; it starts a daemon if none responds.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::nearest;
use api::ollama::{ErrorResponse, TagsResponse};
use content::Digest;
use futures_util::StreamExt;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::Config;

/// How long a started daemon may take until its first response.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long another daemon may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long another daemon may send no line of its progress.
const SILENCE_TIMEOUT: Duration = Duration::from_mins(5);

/// An error response of the daemon.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refused {
    status: StatusCode,
    message: String,
}

impl Refused {
    /// Returns true if the error is a 404 response of the daemon.
    pub(super) fn is_not_found(error: &anyhow::Error) -> bool {
        error.downcast_ref::<Self>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
    }
}

/// Returns the log file for a daemon in the background. It is in the store's folder. If that folder
/// is read-only, it is in a folder of this user below the temporary folder.
fn daemon_log(home: &Path) -> Result<PathBuf> {
    let made = std::fs::create_dir_all(home);
    made.with_context(|| format!("cannot make the folder `{}`; LODE_HOME chooses another", home.display()))?;
    let log = daemon::log_file(home, &std::env::temp_dir());
    let folder = log.parent().unwrap_or(home);
    if folder == home {
        return Ok(log);
    }
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make the folder `{}` for the log", folder.display()));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(folder)?;
    // Another user may have created the folder, to read the log or to redirect it with a link.
    if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() || found.mode() & 0o077 != 0 {
        bail!(
            "the log folder `{}` belongs to another user or is accessible to other users; remove it",
            folder.display()
        );
    }
    Ok(log)
}

/// A connection to the daemon.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    /// Connects to the daemon. Starts one in the background if none responds.
    pub(super) async fn connect(config: &Config) -> Result<Self> {
        let client = Self::new(config)?;
        if !client.answers().await {
            client.start(config).await?;
        }
        Ok(client)
    }

    /// Creates a client without starting a daemon.
    pub(super) fn new(config: &Config) -> Result<Self> {
        Ok(Self { http: Self::builder(config)?.build()?, base: config.url.clone() })
    }

    /// Creates a client for another daemon at a base URL. `address` replaces the addresses of its
    /// host name.
    pub(super) fn of_node(config: &Config, base: &str, address: Option<SocketAddr>) -> Result<Self> {
        let mut http = Self::builder(config)?.connect_timeout(CONNECT_TIMEOUT).read_timeout(SILENCE_TIMEOUT);
        let url = reqwest::Url::parse(base)?;
        if let Some((host, address)) = url.host_str().zip(address) {
            http = http.resolve(host, address);
        }
        Ok(Self { http: http.build()?, base: base.to_owned() })
    }

    fn builder(config: &Config) -> Result<reqwest::ClientBuilder> {
        // No proxy: the daemon is on this machine or at an address that the user named.
        let mut http = reqwest::Client::builder().no_proxy();
        if let Some(tls) = &config.daemon.tls {
            let certificate = &tls.certificate;
            let pem = std::fs::read(certificate).with_context(|| format!("cannot read `{}`", certificate.display()))?;
            let trusted = reqwest::Certificate::from_pem_bundle(&pem)
                .with_context(|| format!("`{}` is not a certificate in a PEM file", certificate.display()))?;
            http = http.tls_certs_merge(trusted);
        }
        if let Some(key) = &config.key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.0))
                .context("LODE_API_KEY cannot be sent: it has characters that no header takes")?;
            value.set_sensitive(true);
            http = http.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
        }
        Ok(http)
    }

    /// Returns true if a daemon responds.
    pub(super) async fn answers(&self) -> bool {
        self.http.get(format!("{}/api/version", self.base)).send().await.is_ok_and(|r| r.status().is_success())
    }

    async fn start(&self, config: &Config) -> Result<()> {
        if !config.daemon.address.ip().is_loopback() && !config.daemon.address.ip().is_unspecified() {
            bail!("no daemon answers at {}; start one there with `lode serve`", config.daemon.address);
        }
        let log = daemon_log(&config.daemon.home)?;
        let output = OpenOptions::new().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("cannot write `{}`", log.display()))?;
        eprintln!("starting a daemon in the background (log: {}; `lode shutdown` stops it)", log.display());
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.arg("serve").stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // A separate process group keeps an interrupt of this command away from the daemon.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut daemon = command.spawn().context("cannot start the daemon")?;
        let begin = Instant::now();
        while begin.elapsed() < START_TIMEOUT {
            if self.answers().await {
                return Ok(());
            }
            if let Some(status) = daemon.try_wait()? {
                // Two commands may start a daemon at the same time. The one that the other command
                // started serves both.
                tokio::time::sleep(Duration::from_millis(200)).await;
                if self.answers().await {
                    return Ok(());
                }
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let reason = text.lines().rev().find(|line| line.starts_with("Error")).unwrap_or_default().to_owned();
                bail!("the daemon ended at once ({status}); see `{}`. {reason}", log.display());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("the daemon did not answer within {} s; see `{}`", START_TIMEOUT.as_secs(), log.display())
    }

    async fn send(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<Response> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(body);
        }
        self.answer(request).await
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<Response> {
        let response = request.send().await.with_context(|| format!("the daemon at {} did not answer", self.base))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        match serde_json::from_str::<ErrorResponse>(&text) {
            Ok(failure) => {
                let mut message = failure.error;
                if let Some(name) = missing(&message).filter(|_| status == StatusCode::NOT_FOUND).map(str::to_owned) {
                    message.push_str(&Box::pin(self.suggestion(&name)).await);
                }
                Err(Refused { status, message }.into())
            }
            Err(_) => bail!("the daemon answered {status}: {text}"),
        }
    }

    /// Returns `; did you mean …?` with the most similar model name, or an empty string.
    pub(super) async fn suggestion(&self, name: &str) -> String {
        let Ok(tags) = self.get::<TagsResponse>("/api/tags").await else { return String::new() };
        let found = nearest(name, tags.models.iter().map(|model| model.name.as_str()));
        found.map(|found| format!("; did you mean `{}`?", found.trim_end_matches(":latest"))).unwrap_or_default()
    }

    /// Sends a GET request and parses the response.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let response = self.send(Method::GET, path, None::<&()>).await?;
        response.json().await.context("the daemon's answer is not readable")
    }

    /// Posts a document and parses the response.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        let response = self.send(Method::POST, path, Some(body)).await?;
        response.json().await.context("the daemon's answer is not readable")
    }

    /// Posts a document and returns the response to stream. The response has a content length if
    /// the daemon announced one.
    pub(super) async fn download(&self, path: &str, body: &impl Serialize) -> Result<Response> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Posts a stream of bytes and parses the response.
    pub(super) async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: reqwest::Body,
    ) -> Result<T> {
        let mut url = reqwest::Url::parse(&format!("{}{path}", self.base))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let response = self.answer(self.http.post(url).body(body)).await?;
        response.json().await.context("the daemon's answer is not readable")
    }

    /// Sends a blob unless the daemon already has it.
    pub(super) async fn upload_blob(&self, digest: &Digest, body: reqwest::Body) -> Result<()> {
        let url = format!("{}/api/blobs/{digest}", self.base);
        let there = self.http.head(&url).send().await.is_ok_and(|response| response.status().is_success());
        if there { Ok(()) } else { self.answer(self.http.post(url).body(body)).await.map(drop) }
    }

    /// Sends a document and ignores the body of the response.
    pub(super) async fn tell(&self, method: Method, path: &str, body: &impl Serialize) -> Result<()> {
        self.send(method, path, Some(body)).await.map(drop)
    }

    /// Posts a document and passes each line of the response to `each`. An error of `each` ends the
    /// reading.
    pub(super) async fn lines<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        each: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        self.lines_of(self.send(Method::POST, path, Some(body)).await?, each).await
    }

    /// Passes each line of a response to `each`. An error of `each` ends the reading.
    pub(super) async fn lines_of<T: DeserializeOwned>(
        &self,
        response: Response,
        mut each: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let mut stream = response.bytes_stream();
        let mut buffer: Vec<u8> = Vec::new();
        while let Some(bytes) = stream.next().await {
            buffer.extend_from_slice(&bytes.context("the daemon's answer broke off")?);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if let Ok(failure) = serde_json::from_slice::<ErrorResponse>(&line) {
                    let suggestion = match missing(&failure.error) {
                        Some(name) => self.suggestion(name).await,
                        None => String::new(),
                    };
                    bail!("{}{suggestion}", failure.error);
                }
                each(serde_json::from_slice(&line).context("the daemon's answer is not readable")?)?;
            }
        }
        Ok(())
    }
}

/// Returns the name of the model that an error message reports as missing.
fn missing(message: &str) -> Option<&str> {
    if let Some(rest) = message.strip_prefix("model `") {
        return rest.split_once("` is not in the store").map(|(name, _)| name);
    }
    let rest = message.strip_prefix("model ")?.strip_suffix(" not found")?;
    rest.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])
}
