//! `lode ui`: the page of the daemon, in a browser.

use std::process::{Command, Stdio};

use anyhow::Result;

use super::client::Client;
use crate::config::Config;

/// Opens the page in a browser where there is a screen, and prints its address.
pub(super) async fn run(config: &Config, print: bool) -> Result<()> {
    Client::connect(config).await?;
    let address = format!("{}/ui/chat", config.url);
    println!("{address}");
    if !print && config.has_screen && !opened(&address) {
        eprintln!("no browser could be started; open the address in one");
    }
    Ok(())
}

/// Asks the desktop to show an address; says whether it could be asked.
fn opened(address: &str) -> bool {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // It may be the browser itself, which stays.
    command.spawn().is_ok()
}
