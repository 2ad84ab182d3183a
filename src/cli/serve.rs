//! Stopping the daemon, and printing versions.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::lode::SocketResponse;
use api::ollama::VersionResponse;
use rustix::process::{Pid, Signal, kill_process};
use store::Store;

use super::client::Client;
use crate::config::Config;

/// Timeout for the daemon's response with the location of its store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a daemon may take to end; it finishes running requests first.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Stops the daemon that the configuration refers to, if one is running.
pub(super) async fn shutdown(config: &Config) -> Result<()> {
    let own = config.daemon.home.canonicalize().unwrap_or_else(|_| config.daemon.home.clone());
    if Store::holder(&own)?.is_none()
        && let Some(pid) = reader(config).await
    {
        return stop(pid, || Ok(is_daemon_of_this_program(pid))).await;
    }
    let home = meant(config).await?;
    let Some(pid) = Store::holder(&home)? else {
        eprintln!("no daemon has the store `{}` open", home.display());
        return Ok(());
    };
    stop(pid, || Ok(Store::holder(&home)? == Some(pid))).await
}

/// Returns the process id of the daemon at the address if it runs on this machine with a read-only
/// store. Such a store has no lock that names its process. The reported id is trusted only if that
/// process runs `lode serve` with this program.
async fn reader(config: &Config) -> Option<u32> {
    if !config.daemon.address.ip().is_loopback() {
        return None;
    }
    let client = Client::new(config).ok()?;
    let told = tokio::time::timeout(ANSWER_TIMEOUT, client.get::<SocketResponse>("/api/lode/socket")).await;
    let told = told.ok()?.ok()?;
    let home = Path::new(&told.home);
    let is_meant = !config.names_home || config.daemon.home.canonicalize().is_ok_and(|own| own == home);
    (is_meant && Store::is_read_only_at(home) && is_daemon_of_this_program(told.pid)).then_some(told.pid)
}

/// Returns true if a process on this machine is `lode serve` with this program.
fn is_daemon_of_this_program(pid: u32) -> bool {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let (Ok(program), Ok(own)) = (std::fs::read_link(folder.join("exe")), std::env::current_exe()) else {
        return false;
    };
    // A newer version may have replaced the program file.
    let program = program.to_string_lossy();
    let is_own = Path::new(program.strip_suffix(" (deleted)").unwrap_or(&program)) == own;
    let line = std::fs::read(folder.join("cmdline")).unwrap_or_default();
    is_own && line.split(|byte| *byte == 0).nth(1) == Some(b"serve".as_slice())
}

/// Sends SIGTERM to a process and waits until it has ended.
async fn stop(pid: u32, is_there: impl Fn() -> Result<bool>) -> Result<()> {
    let process =
        i32::try_from(pid).ok().and_then(Pid::from_raw).context("the daemon names no process of this machine")?;
    kill_process(process, Signal::TERM).with_context(|| format!("cannot stop process {pid}"))?;
    let begin = Instant::now();
    while begin.elapsed() < STOP_TIMEOUT {
        if !is_there()? {
            eprintln!("stopped the daemon (process {pid})");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("process {pid} did not end within {} s", STOP_TIMEOUT.as_secs())
}

/// Returns the store of the daemon to stop: the one at the address if `LODE_HOST` is set, else the
/// one in `LODE_HOME`.
async fn meant(config: &Config) -> Result<PathBuf> {
    let own = config.daemon.home.canonicalize().unwrap_or_else(|_| config.daemon.home.clone());
    if !config.names_host {
        return Ok(own);
    }
    let address = config.daemon.address;
    let told = Client::new(config)?.get::<SocketResponse>("/api/lode/socket").await;
    let (Ok(told), holder) = (&told, Store::holder(&own)?) else {
        return match Store::holder(&own)? {
            Some(pid) => bail!(
                "no daemon answers at {address}; process {pid} has the store `{}` open: unset LODE_HOST to stop that one",
                own.display()
            ),
            None => Ok(own),
        };
    };
    let home = PathBuf::from(&told.home);
    // The daemon's report is trusted only if the lock of the store confirms it.
    if home == own && holder == Some(told.pid) {
        return Ok(own);
    }
    if told.home.is_empty() || Store::holder(&home)? != Some(told.pid) {
        bail!("the daemon at {address} is not one of this machine's; stop it where it runs");
    }
    if config.names_home {
        let own = own.display();
        bail!("the daemon at {address} has the store `{}`, and LODE_HOME is `{own}`; unset one of them", told.home);
    }
    Ok(home)
}

/// Prints the version of this program, and of the daemon if one responds.
pub(super) async fn version(config: &Config) -> Result<()> {
    println!("lode {}", env!("CARGO_PKG_VERSION"));
    let client = Client::new(config)?;
    if client.answers().await {
        let daemon: VersionResponse = client.get("/api/version").await?;
        println!("daemon {} at {}", daemon.program(), config.daemon.address);
    } else {
        eprintln!("no daemon answers at {}", config.daemon.address);
    }
    Ok(())
}
