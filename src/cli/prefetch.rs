//! `lode prefetch`: makes several daemons pull models, so that they are there when they are needed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::ollama::PullRequest;
use clap::Args;
use futures_util::StreamExt;
use reqwest::Url;
use serde::Serialize;

use super::Format;
use super::client::Client;
use super::text::plain;
use super::transfer::TransferLine;
use crate::config::{Config, DEFAULT_PORT};

/// Arguments of `lode prefetch`.
#[derive(Debug, Args)]
pub(super) struct PrefetchArguments {
    /// Names of the models
    #[arg(required = true)]
    models: Vec<String>,
    /// Addresses of daemons: HOST, HOST:PORT or a URL; may be repeated, or separated by commas
    #[arg(long, value_name = "NODE", value_delimiter = ',', required_unless_present = "nodes_from")]
    nodes: Vec<String>,
    /// A file with the address of a daemon on each line; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    nodes_from: Option<PathBuf>,
    /// Connect to a daemon at every address of a name, as of a Kubernetes service without an
    /// address of its own
    #[arg(long)]
    all_addresses: bool,
    /// Number of daemons that pull at the same time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
    /// Connect to the registry by HTTP without TLS
    #[arg(long)]
    insecure: bool,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A daemon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    url: String,
    /// One of several addresses of the name.
    address: Option<SocketAddr>,
}

impl Node {
    fn shown(&self) -> String {
        self.address.map_or_else(|| self.url.clone(), |address| format!("{} ({address})", self.url))
    }
}

/// The result for a daemon and a model; a line of the output.
#[derive(Debug, Serialize)]
struct Outcome {
    node: String,
    model: String,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Makes each daemon pull each model.
///
/// # Errors
/// A pull failed. All others are done.
pub(super) async fn run(config: &Config, arguments: &PrefetchArguments) -> Result<()> {
    let nodes = nodes(arguments).await?;
    let begin = Instant::now();
    let mut outcomes = futures_util::stream::iter(&nodes)
        .map(|node| pulls(config, arguments, node))
        .buffer_unordered(arguments.parallel.into());
    let (mut failed, mut done) = (0, 0);
    while let Some(of_node) = outcomes.next().await {
        for outcome in of_node {
            if outcome.error.is_some() {
                failed += 1;
            } else {
                done += 1;
            }
            print(&outcome, arguments.format)?;
        }
    }
    ensure!(failed == 0, "{failed} of {} pulls failed; run the same command again to resume", failed + done);
    let (nodes, models, seconds) = (nodes.len(), arguments.models.len(), begin.elapsed().as_secs_f64());
    eprintln!("{nodes} nodes have {models} models ({seconds:.1} s)");
    Ok(())
}

fn print(outcome: &Outcome, format: Format) -> Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string(outcome)?);
        return Ok(());
    }
    let Outcome { node, model, seconds, error } = outcome;
    match error {
        None => println!("{node}  {model}  {seconds:.1} s"),
        Some(error) => println!("{node}  {model}  failed: {}", plain(error)),
    }
    Ok(())
}

/// The daemons of the arguments, without repetitions.
async fn nodes(arguments: &PrefetchArguments) -> Result<Vec<Node>> {
    let mut names = arguments.nodes.clone();
    if let Some(path) = &arguments.nodes_from {
        let text = if path.as_os_str() == "-" {
            std::io::read_to_string(std::io::stdin()).context("cannot read standard input")?
        } else {
            std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?
        };
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        names.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
    }
    let mut nodes = BTreeSet::new();
    for name in names.iter().filter(|name| !name.is_empty()) {
        let url = node_url(name)?;
        if arguments.all_addresses {
            nodes.extend(addresses(&url).await?.into_iter().map(|address| Node { url: url.clone(), address }));
        } else {
            nodes.insert(Node { url, address: None });
        }
    }
    if nodes.is_empty() {
        bail!("no daemon is named; give `--nodes HOST:PORT` or a file with `--nodes-from`");
    }
    Ok(nodes.into_iter().collect())
}

/// The base URL of a daemon: `HOST`, `HOST:PORT` or a URL without a path.
fn node_url(text: &str) -> Result<String> {
    let bad = || format!("`{text}` is not the address of a daemon; expected HOST, HOST:PORT or a URL without a path");
    let has_scheme = text.contains("://");
    let url = if has_scheme { text.to_owned() } else { format!("http://{text}") };
    let mut url = Url::parse(&url).with_context(bad)?;
    let is_plain = url.username().is_empty() && url.query().is_none() && url.fragment().is_none();
    ensure!(matches!(url.scheme(), "http" | "https") && url.path() == "/" && is_plain && url.has_host(), bad());
    // The URL forgets a port that is its scheme's default.
    let names_port = text.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if !has_scheme && !names_port {
        url.set_port(Some(DEFAULT_PORT)).map_err(|()| anyhow::anyhow!(bad()))?;
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// All addresses of the host of a URL.
async fn addresses(url: &str) -> Result<Vec<Option<SocketAddr>>> {
    let parsed = Url::parse(url)?;
    let host = parsed.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = parsed.port_or_known_default().unwrap_or_default();
    let found = tokio::net::lookup_host((host.as_str(), port)).await;
    let found = found.with_context(|| format!("the name `{host}` has no address"))?;
    Ok(found.map(Some).collect())
}

/// Makes a daemon pull all models, one after the other: a daemon shares its bandwidth anyway.
async fn pulls(config: &Config, arguments: &PrefetchArguments, node: &Node) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for model in &arguments.models {
        let begin = Instant::now();
        let pulled = pull(config, node, model, arguments.insecure).await;
        let error = pulled.err().map(|error| format!("{error:#}"));
        outcomes.push(Outcome { node: node.shown(), model: model.clone(), seconds: seconds(begin.elapsed()), error });
    }
    outcomes
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

async fn pull(config: &Config, node: &Node, model: &str, insecure: bool) -> Result<()> {
    let client = Client::of_node(config, &node.url, node.address)?;
    let request = PullRequest { model: model.to_owned(), insecure, stream: Some(true), ..PullRequest::default() };
    let mut last = String::new();
    let read = client.lines("/api/pull", &request, |line: TransferLine| {
        last = line.status;
        Ok(())
    });
    read.await?;
    ensure!(last == "success", "the transfer broke off after `{last}`");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses_of_nodes() {
        for (text, expect) in [
            ("gpu1", "http://gpu1:11434"),
            ("gpu1:80", "http://gpu1"),
            ("10.0.0.5:5000", "http://10.0.0.5:5000"),
            ("[::1]:5000", "http://[::1]:5000"),
            ("https://gpu1.example", "https://gpu1.example"),
            ("http://gpu1:11434/", "http://gpu1:11434"),
        ] {
            assert_eq!(node_url(text).expect(text), expect);
        }
        for text in ["", "ftp://gpu1", "http://gpu1/api", "http://me@gpu1", "gpu1:x", "http://gpu1?x"] {
            assert!(node_url(text).is_err(), "{text}");
        }
    }
}
