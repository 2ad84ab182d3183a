//! Checks of the network: the daemon's port, proxies, and settings of registries.

use std::net::TcpStream;
use std::time::Duration;

use api::ollama::VersionResponse;

use super::Finding;
use crate::cli::client::Client;
use crate::config::Config;

/// Timeout for a connection to the daemon's port.
const PATIENCE: Duration = Duration::from_secs(2);
/// A host name for reading the registry settings; it need not exist.
const ANY_HOST: &str = "registry.example";

/// Runs all network checks.
pub(super) async fn check(config: &Config) -> Vec<Finding> {
    let mut findings = vec![daemon(config).await, exposure(config), registries(config)];
    findings.push(proxies(|name| std::env::var(name).ok(), config));
    findings
}

async fn daemon(config: &Config) -> Finding {
    let address = config.daemon.address;
    let client = match Client::new(config) {
        Ok(client) => client,
        Err(error) => {
            return Finding::failure("daemon", format!("{error:#}"), "correct the setting that the message names");
        }
    };
    let ours = env!("CARGO_PKG_VERSION");
    match client.get::<VersionResponse>("/api/version").await {
        Ok(answer) if answer.lode_version.as_deref() == Some(ours) => {
            Finding::ok("daemon", format!("version {ours} answers at {address}"))
        }
        Ok(answer) => Finding::warning(
            "daemon",
            format!("version {} answers at {address}, this program is version {ours}", answer.program()),
            "stop the other one (`lode shutdown`, or Ollama's service) and start this one, or set LODE_HOST to another port",
        ),
        Err(_) if TcpStream::connect_timeout(&address, PATIENCE).is_err() => {
            Finding::ok("daemon", format!("none runs at {address}; commands start one when they need it"))
        }
        Err(error) => Finding::failure(
            "daemon",
            format!("something at {address} does not answer as a daemon does: {error:#}"),
            "another program uses the port, or the daemon requires TLS or a key; set LODE_HOST to another address",
        ),
    }
}

fn exposure(config: &Config) -> Finding {
    let (address, ip) = (config.daemon.address, config.daemon.address.ip());
    if ip.is_loopback() {
        return Finding::ok("access", format!("{address} is for this machine only"));
    }
    match (config.daemon.keys.is_some(), config.daemon.tls.is_some()) {
        (true, true) => Finding::ok("access", format!("{address} requires API keys and uses TLS")),
        (true, false) => Finding::warning(
            "access",
            format!("{address} requires API keys but uses no TLS, so the keys are readable on the network"),
            "set LODE_TLS_CERT and LODE_TLS_KEY, or put a proxy with TLS before it",
        ),
        (false, _) => Finding::warning(
            "access",
            format!(
                "every machine that can reach {address} can use the models; changes are refused from other machines"
            ),
            "set LODE_API_KEYS to a file of keys (`lode key NAME` makes them), or listen on 127.0.0.1",
        ),
    }
}

fn registries(config: &Config) -> Finding {
    match config.registries.host(ANY_HOST) {
        Ok(_) => Finding::ok("registries", "their settings and logins can be read"),
        Err(error) => Finding::failure("registries", format!("{error:#}"), "correct the file that the message names"),
    }
}

/// Checks the proxy variables of the environment. `get` reads a variable.
fn proxies(get: impl Fn(&str) -> Option<String>, config: &Config) -> Finding {
    let either = |name: &str| get(name).or_else(|| get(&name.to_lowercase())).filter(|value| !value.is_empty());
    let set: Vec<String> = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
        .iter()
        .filter_map(|name| Some(format!("{name}={}", without_password(&either(name)?))))
        .collect();
    if set.is_empty() {
        return Finding::ok("proxies", "none is set");
    }
    let found = set.join(", ");
    let exempt = either("NO_PROXY").unwrap_or_default();
    let host = config.daemon.address.ip();
    let covers = exempt.split(',').any(|item| {
        let item = item.trim();
        item == "*" || item == host.to_string() || (host.is_loopback() && item == "localhost")
    });
    if covers {
        Finding::ok("proxies", format!("{found}, NO_PROXY={exempt}"))
    } else {
        Finding::warning(
            "proxies",
            found,
            format!(
                "pulls and pushes go through it; other clients may send their requests for {host} there too: add \
                     `{host},localhost` to NO_PROXY"
            ),
        )
    }
}

/// Returns a proxy's address without user name and password.
fn without_password(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        (None, Some((_, host))) => format!("…@{host}"),
        (_, None) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(without_password("http://me:secret@proxy:1"), "http://…@proxy:1");
        assert_eq!(without_password("http://proxy:1"), "http://proxy:1");
        assert_eq!(without_password("me:secret@proxy"), "…@proxy");
    }
}
