//! Who may use the registry, as it is configured.

use std::path::Path;

use anyhow::{Context, Result};
use registry::server::access::{Access, AccessOptions, TokenKey};

use crate::settings::RegistryAccess;

/// Reads the users, and the key of tokens in the store's folder, where there is something that only users may do.
pub(crate) fn configured(settings: &RegistryAccess, home: &Path) -> Result<Access> {
    let failed = "cannot set up who may use the registry";
    // From a file, so that a restart does not cut off who has a token or reads from a link.
    let key = if settings.mode.needs_users() {
        TokenKey::from_file(&home.join("token.key")).context(failed)?
    } else {
        TokenKey::random()
    };
    let mut options = AccessOptions::new(settings.mode, key);
    options.users.clone_from(&settings.users);
    options.challenge = settings.challenge;
    Access::new(options).context(failed)
}
