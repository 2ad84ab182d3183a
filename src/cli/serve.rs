//! Stopping the daemon, and versions.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::ollama::VersionResponse;
use rustix::process::{Pid, Signal, kill_process};
use store::Store;

use super::client::Client;
use crate::config::Config;

/// How long a daemon may take to end: it lets requests finish first.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Stops the daemon of this store, if one runs.
pub(super) async fn shutdown(config: &Config) -> Result<()> {
    let Some(pid) = Store::holder(&config.daemon.home)? else {
        eprintln!("no daemon has the store `{}` open", config.daemon.home.display());
        return Ok(());
    };
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).context("the lock of the store names no process")?;
    kill_process(process, Signal::TERM).with_context(|| format!("cannot stop process {pid}"))?;
    let begin = Instant::now();
    while begin.elapsed() < STOP_TIMEOUT {
        if Store::holder(&config.daemon.home)? != Some(pid) {
            eprintln!("stopped the daemon (process {pid})");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("process {pid} did not end within {} s", STOP_TIMEOUT.as_secs())
}

/// Prints this program's version, and the daemon's where one answers.
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
