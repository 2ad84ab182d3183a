//! `/api/lode/registry`: the settings of this daemon's registry, and the configured hosts of other
//! registries.

use api::lode::{RegistryHost, RegistryResponse};
use axum::Json;
use axum::extract::State;
use content::operation::OperationError;
use registry::server::access::{Action, Rule};
use transfer::Hosts;

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::blocking;

pub(crate) async fn registry(State(daemon): State<Daemon>) -> Result<Json<RegistryResponse>, Failed> {
    let hosts = Hosts::anonymous(&daemon.settings.registries);
    let hosts = blocking(&daemon.library, move |_| {
        let names = hosts.configured().map_err(|error| unreadable(&error))?;
        Ok(names.into_iter().map(|host| described(&hosts, host)).collect())
    });
    let settings = &daemon.settings.registry;
    let users = settings.mode.needs_users();
    let keys = daemon.keys.is_some();
    let who = |action| match settings.mode.rule(action) {
        _ if keys && !users => "keys",
        Rule::Anyone if settings.chosen || action == Action::Pull => "anyone",
        Rule::Anyone => "this machine",
        Rule::User => "users",
        Rule::Nobody => "nobody",
    };
    Ok(Json(RegistryResponse {
        mode: settings.mode.to_string(),
        chosen: settings.chosen,
        keys,
        users,
        pull: who(Action::Pull).to_owned(),
        push: who(Action::Push).to_owned(),
        pull_through: daemon.settings.pull_through.clone(),
        hosts: hosts.await?,
    }))
}

fn described(hosts: &Hosts, host: String) -> RegistryHost {
    match hosts.mirrors(&host) {
        Ok((mirrors, plain_http)) => RegistryHost { host, mirrors, plain_http, error: None },
        Err(error) => RegistryHost { host, error: Some(unreadable(&error).to_string()), ..RegistryHost::default() },
    }
}

/// Logs the reason and hides it from the client, because a line of the file may contain
/// credentials.
fn unreadable(error: &OperationError) -> OperationError {
    tracing::error!("{error:#}");
    OperationError::text("registries.toml cannot be read; the daemon's log says why")
}
