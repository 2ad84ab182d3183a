//! `lode login` and `lode logout`: logins for registries.

use anyhow::{Result, bail, ensure};
use clap::Args;
use registry::client::{Action, Credential, Credentials, Host, Payload, Request, Scope};

use super::password;
use crate::config::Config;

/// Arguments of `lode login`.
#[derive(Debug, Args)]
pub(super) struct LoginArguments {
    /// The registry: HOST or HOST:PORT
    host: String,
    /// Name of the user
    #[arg(short, long)]
    username: Option<String>,
    /// Read the password from standard input
    #[arg(long)]
    password_stdin: bool,
    /// Save the login without checking it at the registry
    #[arg(long)]
    no_check: bool,
}

pub(super) async fn login(config: &Config, arguments: &LoginArguments) -> Result<()> {
    let user = match &arguments.username {
        Some(user) => user.clone(),
        None => bail!("no user name given; run `lode login {} --username USER`", arguments.host),
    };
    let password = if arguments.password_stdin {
        password::piped()?
    } else {
        password::asked(&[&format!("Password of {user} at {}: ", arguments.host)])?.pop().unwrap_or_default()
    };
    ensure!(!password.is_empty(), "the password is empty");
    let credential = Credential::Password { user: user.clone(), password };
    if !arguments.no_check {
        check(config, &arguments.host, credential.clone()).await?;
    }
    let (logins, host) = (config.registries.own_logins(), arguments.host.clone());
    tokio::task::spawn_blocking(move || logins.store(&host, &credential)).await??;
    eprintln!("logged in at {} as {user}; kept in `{}`", arguments.host, config.registries.logins.display());
    Ok(())
}

pub(super) async fn logout(config: &Config, host: &str) -> Result<()> {
    let (logins, name) = (config.registries.own_logins(), host.to_owned());
    let known = tokio::task::spawn_blocking(move || logins.erase(&name)).await??;
    eprintln!("{}", if known { "logged out" } else { "there was no login" });
    Ok(())
}

/// A credential store with a single login.
struct Only(Credential);

impl Credentials for Only {
    fn find(&self, _host: &str) -> Result<Option<Credential>, registry::client::Error> {
        Ok(Some(self.0.clone()))
    }
}

/// Sends the login to the registry, to check that it is valid.
async fn check(config: &Config, name: &str, credential: Credential) -> Result<()> {
    let host = Host::new(name, config.registries.host(name)?, std::sync::Arc::new(Only(credential)))?;
    let scope = Scope { repository: String::new(), actions: Action::Pull, mount_from: None };
    let request = Request {
        method: reqwest::Method::GET,
        url: host.url("/v2/"),
        headers: reqwest::header::HeaderMap::new(),
        scope: &scope,
        payload: Payload::None,
    };
    let response = host.send(request).await?;
    if response.status().is_success() {
        return Ok(());
    }
    Err(host.refusal("the login", response).await.into())
}
