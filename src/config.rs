//! The configuration: the only place that reads the environment.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `LODE_HOME` | folder of the store | `$XDG_DATA_HOME/lode` or `~/.local/share/lode`; on macOS `~/Library/Application Support/lode` |
//! | `LODE_HOST`, `OLLAMA_HOST` | address of the daemon | `127.0.0.1:11434` |
//! | `LODE_KEEP_ALIVE`, `OLLAMA_KEEP_ALIVE` | how long an idle model stays loaded | `5m` |
//! | `LODE_CONTEXT_LENGTH`, `OLLAMA_CONTEXT_LENGTH` | context where a request names none | 4096 |
//! | `LODE_MAX_LOADED_MODELS`, `OLLAMA_MAX_LOADED_MODELS` | models loaded at a time | 3 |
//! | `LODE_LOAD_TIMEOUT`, `OLLAMA_LOAD_TIMEOUT` | how long a load may take | `5m` |
//! | `LODE_DEVICE` | `auto`, `cpu`, `cuda:N`, `metal` | `auto` |
//! | `LODE_REFERENCE` | `1`: runners expand all weights and compute in float32 | off |
//! | `LODE_RUNNER` | the runner's program | `lode-runner` beside `lode` |
//! | `LODE_LOG` | log filter | `info` |
//! | `LODE_CRASH_AT` | for tests: kill the daemon at a step of a commit | – |

use std::env;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::ollama::KeepAliveSpec;
use store::CrashPoint;

/// Where Ollama listens, so that its clients find us.
const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 11434;

/// Everything that is configured.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Folder of the store.
    pub(crate) home: PathBuf,
    /// Address of the daemon.
    pub(crate) address: SocketAddr,
    /// How long an idle model stays loaded; `None` is forever.
    pub(crate) keep_alive: Option<Duration>,
    /// Context where a request names none, in tokens.
    pub(crate) context: u64,
    /// Models loaded at a time.
    pub(crate) max_loaded: usize,
    /// How long a load may take.
    pub(crate) load_timeout: Duration,
    /// The device of runners.
    pub(crate) device: String,
    /// Runners compute in float32 throughout.
    pub(crate) reference: bool,
    /// The runner's program.
    pub(crate) runner: PathBuf,
    /// Where sockets and other things go that end with the process.
    pub(crate) temporary: PathBuf,
    /// Log filter.
    pub(crate) log: String,
    /// Where to be killed, for tests.
    pub(crate) crash_at: Option<CrashPoint>,
}

impl Config {
    /// Reads the environment.
    pub(crate) fn read() -> Result<Self> {
        Ok(Self {
            home: home()?,
            address: address(&first(&["LODE_HOST", "OLLAMA_HOST"]).unwrap_or_default())?,
            keep_alive: duration(&["LODE_KEEP_ALIVE", "OLLAMA_KEEP_ALIVE"], "5m")?,
            context: number(&["LODE_CONTEXT_LENGTH", "OLLAMA_CONTEXT_LENGTH"], 4096)?,
            max_loaded: usize::try_from(number(&["LODE_MAX_LOADED_MODELS", "OLLAMA_MAX_LOADED_MODELS"], 3)?)?,
            load_timeout: duration(&["LODE_LOAD_TIMEOUT", "OLLAMA_LOAD_TIMEOUT"], "5m")?.unwrap_or(Duration::MAX),
            device: first(&["LODE_DEVICE"]).unwrap_or_else(|| "auto".to_owned()),
            reference: first(&["LODE_REFERENCE"]).is_some_and(|value| value != "0"),
            runner: runner()?,
            temporary: env::temp_dir(),
            log: first(&["LODE_LOG"]).unwrap_or_else(|| "info".to_owned()),
            crash_at: crash_at()?,
        })
    }
}

/// The first of the variables that is set to something.
fn first(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

fn home() -> Result<PathBuf> {
    if let Some(home) = first(&["LODE_HOME"]) {
        return std::path::absolute(home).context("LODE_HOME is not a path");
    }
    let user = env::home_dir().context("there is no home folder; set LODE_HOME to the folder of the store")?;
    if cfg!(target_os = "macos") {
        return Ok(user.join("Library/Application Support/lode"));
    }
    Ok(first(&["XDG_DATA_HOME"]).map_or_else(|| user.join(".local/share"), PathBuf::from).join("lode"))
}

fn runner() -> Result<PathBuf> {
    if let Some(program) = first(&["LODE_RUNNER"]) {
        return Ok(program.into());
    }
    let own = env::current_exe().context("cannot find this program; set LODE_RUNNER to the runner's program")?;
    Ok(own.with_file_name(format!("lode-runner{}", env::consts::EXE_SUFFIX)))
}

fn crash_at() -> Result<Option<CrashPoint>> {
    let parse =
        |name: String| CrashPoint::parse(&name).with_context(|| format!("LODE_CRASH_AT: `{name}` is not known"));
    first(&["LODE_CRASH_AT"]).map(parse).transpose()
}

fn number(names: &[&str], default: u64) -> Result<u64> {
    match first(names) {
        Some(text) => match text.parse() {
            Ok(0) | Err(_) => bail!("{}: `{text}` is not a whole number above 0", names[0]),
            Ok(number) => Ok(number),
        },
        None => Ok(default),
    }
}

fn duration(names: &[&str], default: &str) -> Result<Option<Duration>> {
    let text = first(names).unwrap_or_else(|| default.to_owned());
    KeepAliveSpec::parse(&text).map(|spec| spec.0).map_err(|e| anyhow::anyhow!("{}: {e}", names[0]))
}

/// Reads `host`, `host:port`, `:port`, `http://host:port`; what is missing is the default.
fn address(text: &str) -> Result<SocketAddr> {
    let text = text.trim().trim_end_matches('/');
    let (text, default_port) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80),
        (_, Some(_)) => bail!("LODE_HOST: `{text}` asks for TLS, which the daemon does not speak yet"),
        _ => (text, DEFAULT_PORT),
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && (!host.contains(':') || host.ends_with(']')) => {
            (host, port.parse().with_context(|| format!("LODE_HOST: `{port}` is not a port"))?)
        }
        _ => (text, default_port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { DEFAULT_HOST } else { host };
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let mut found =
        (host, port).to_socket_addrs().with_context(|| format!("LODE_HOST: `{host}` cannot be resolved"))?;
    found.next().with_context(|| format!("LODE_HOST: `{host}` has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses() {
        for (text, expect) in [
            ("", "127.0.0.1:11434"),
            ("0.0.0.0", "0.0.0.0:11434"),
            (":8080", "127.0.0.1:8080"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("http://10.0.0.1", "10.0.0.1:80"),
            ("http://10.0.0.1:9/", "10.0.0.1:9"),
            ("[::1]:9", "[::1]:9"),
            ("::1", "[::1]:11434"),
        ] {
            assert_eq!(address(text).expect(text).to_string(), expect, "{text}");
        }
        for bad in ["10.0.0.1:x", "10.0.0.1:99999", "https://x"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
