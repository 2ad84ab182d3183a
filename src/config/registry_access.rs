//! Access control of the registry, from the environment.

use anyhow::{Context, Result, bail};
use daemon::RegistryAccess;
use registry::server::Completeness;
use registry::server::access::{Challenge, Mode, UserSource};

use super::variables::first;

/// The users of the registry: a file, or the text of one.
pub(super) fn users(file: Option<String>, text: Option<String>) -> Result<Option<UserSource>> {
    match (file, text) {
        (Some(_), Some(_)) => {
            bail!("LODE_REGISTRY_USERS and LODE_REGISTRY_HTPASSWD both name users; set one of them")
        }
        (Some(file), None) => Ok(Some(UserSource::File(file.into()))),
        (None, text) => Ok(text.map(UserSource::Text)),
    }
}

/// Fails if the registry's mode needs users and there are none, or if it ignores logins.
pub(super) fn ensure_users(registry: &RegistryAccess) -> Result<()> {
    if !registry.mode.needs_users() && !registry.providers.is_empty() {
        bail!(
            "the registry rules name identity providers, but LODE_REGISTRY_MODE is `{}`, which ignores logins; set \
             it to `anonymous-pull` or `private`",
            registry.mode
        );
    }
    if registry.mode.needs_users() && registry.users.is_none() && registry.providers.is_empty() {
        bail!(
            "LODE_REGISTRY_MODE is `{}`, which needs users; set LODE_REGISTRY_USERS to an htpasswd file \
             (`lode htpasswd USER` prints its lines), LODE_REGISTRY_HTPASSWD to the text of one, or name an \
             identity provider in LODE_REGISTRY_RULES",
            registry.mode
        );
    }
    Ok(())
}

/// Access control of the registry. The rules add the identity providers later.
pub(super) fn registry(
    mode: Option<String>,
    users: Option<UserSource>,
    challenge: Option<String>,
) -> Result<RegistryAccess> {
    let chosen = mode.is_some();
    let mode = mode.unwrap_or_else(|| "open".to_owned());
    let mode = Mode::parse(&mode).with_context(|| {
        format!("LODE_REGISTRY_MODE: `{mode}` is not `open`, `read-only`, `anonymous-pull` or `private`")
    })?;
    let challenge = challenge.unwrap_or_else(|| "bearer".to_owned());
    let challenge = Challenge::parse(&challenge)
        .with_context(|| format!("LODE_REGISTRY_CHALLENGE: `{challenge}` is not `bearer` or `basic`"))?;
    let is_sparse = first(&["LODE_REGISTRY_SPARSE"]).is_some_and(|value| value != "0");
    let completeness = if is_sparse { Completeness::Sparse } else { Completeness::Whole };
    Ok(RegistryAccess { mode, chosen, users, providers: Vec::new(), challenge, completeness })
}
