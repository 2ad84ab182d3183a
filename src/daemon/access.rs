//! Who may use the registry, as it is configured; and tokens for them.

use std::path::Path;

use anyhow::{Context, Result};
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use registry::server::access::{Access, AccessOptions, TokenKey};

use super::Daemon;
use crate::config::RegistryConfig;

/// Reads the users, and the key of tokens in the store's folder, where there is something that only users may do.
pub(super) fn configured(config: &RegistryConfig, home: &Path) -> Result<Access> {
    let failed = "cannot set up who may use the registry";
    // From a file, so that a restart does not cut off who has a token or reads from a link.
    let key = if config.mode.needs_users() {
        TokenKey::from_file(&home.join("token.key")).context(failed)?
    } else {
        TokenKey::random()
    };
    let mut options = AccessOptions::new(config.mode, key);
    options.users.clone_from(&config.users);
    options.challenge = config.challenge;
    Access::new(options).context(failed)
}

/// `GET /v2/token`.
pub(super) async fn token(State(daemon): State<Daemon>, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    daemon.access.token(&headers, &query.unwrap_or_default()).await
}
