//! Access control of the registry, from the configuration.

use content::operation::{Context, Result, Unclassified};
use registry::server::access::{Access, AccessOptions, TokenKey};
use store::Store;

use crate::settings::RegistryAccess;

const FAILED: &str = "cannot set up access control of the registry";

/// Creates the access control. Reads the users and, if an operation needs a user, the token key in
/// the store's folder.
pub(crate) fn configured(settings: &RegistryAccess, store: &Store) -> Result<Access> {
    // The key is in a file, so that tokens and links of clients stay valid after a restart.
    let key = if settings.mode.needs_users() {
        match TokenKey::from_file(&store.home().join("token.key")) {
            // The file is absent and cannot be created, or belongs to another user.
            Err(_) if store.is_read_only() => TokenKey::random(),
            read => read.internal().context(FAILED)?,
        }
    } else {
        TokenKey::random()
    };
    with_key(settings, key)
}

/// Creates the access control with a key. Reads the users.
pub(crate) fn with_key(settings: &RegistryAccess, key: TokenKey) -> Result<Access> {
    let mut options = AccessOptions::new(settings.mode, key);
    options.users.clone_from(&settings.users);
    options.providers.clone_from(&settings.providers);
    options.challenge = settings.challenge;
    Access::new(options).internal().context(FAILED)
}
