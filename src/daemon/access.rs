//! Who may use the registry, as it is configured.

use std::path::Path;

use anyhow::{Context, Result};
use registry::server::access::{Access, AccessOptions, TokenKey};

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
