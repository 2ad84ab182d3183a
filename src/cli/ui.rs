//! `lode ui`: opens the daemon's web page in a browser.

use std::process::{Command, Stdio};

use anyhow::Result;

use super::client::Client;
use crate::config::Config;

/// Prints the URL of the page, and opens it in a browser if there is a display.
pub(super) async fn run(config: &Config, print: bool) -> Result<()> {
    Client::connect(config).await?;
    let address = format!("{}/ui/chat", config.url);
    println!("{address}");
    if !print && config.has_screen && !opened(&address) {
        eprintln!("no browser could be started; open the address in one");
    }
    Ok(())
}

/// Opens a URL with the desktop's default program. Returns true if that program started.
fn opened(address: &str) -> bool {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Does not wait: the process may be the browser itself.
    command.spawn().is_ok()
}
