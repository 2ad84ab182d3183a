//! Who may use the registry, as it is configured.

use anyhow::{Context, Result};
use registry::server::access::{Access, AccessOptions, TokenKey};
use store::Store;

use crate::settings::RegistryAccess;

/// Reads the users, and the key of tokens in the store's folder, where there is something that only users may do.
pub(crate) fn configured(settings: &RegistryAccess, store: &Store) -> Result<Access> {
    let failed = "cannot set up who may use the registry";
    // From a file, so that a restart does not cut off clients that have a token or read from a link.
    let key = if settings.mode.needs_users() {
        match TokenKey::from_file(&store.home().join("token.key")) {
            // It is not there and cannot be made, or is another user's.
            Err(_) if store.is_read_only() => TokenKey::random(),
            read => read.context(failed)?,
        }
    } else {
        TokenKey::random()
    };
    let mut options = AccessOptions::new(settings.mode, key);
    options.users.clone_from(&settings.users);
    options.challenge = settings.challenge;
    Access::new(options).context(failed)
}
