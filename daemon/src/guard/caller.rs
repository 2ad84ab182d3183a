//! The caller of a request and its permissions.

use std::net::SocketAddr;

use axum::http::StatusCode;

use super::keys::{Keys, Owner};
use super::scope::Scope;
use crate::error::Failed;

/// The caller of a request. Handlers check it for operations that need more than the permission of
/// their route.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// A caller with an API key.
    WithKey(Owner),
    /// A caller with all permissions: on this machine if there are no keys, or checked by the
    /// registry.
    Trusted,
    /// A caller on another machine without a key. It may read and run models. The text names the
    /// variable that enables authentication.
    Stranger(&'static str),
}

impl Caller {
    /// Returns the caller at this address if there are no keys; `remedy` is the variable that
    /// enables authentication.
    pub(super) fn at(sender: Option<SocketAddr>, remedy: &'static str) -> Self {
        // A daemon behind a socket that is not TCP has no remote callers.
        if sender.is_none_or(|address| address.ip().to_canonical().is_loopback()) {
            return Self::Trusted;
        }
        Self::Stranger(remedy)
    }

    /// Returns the name of the key, or an empty text without a key.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::WithKey(owner) => &owner.name,
            Self::Trusted | Self::Stranger(_) => "",
        }
    }

    /// Checks that the caller has this scope.
    ///
    /// # Errors
    /// 403, with advice.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), Failed> {
        let message = match self {
            Self::WithKey(owner) if !owner.scopes.contains(&scope) => {
                format!("the API key of `{}` may not do this; it needs the scope `{}`", owner.name, scope.name())
            }
            Self::Stranger(remedy) if scope.changes() => format!(
                "requests from other machines that change the store or contact other servers need authentication; set \
                 {remedy} where the daemon runs"
            ),
            Self::WithKey(_) | Self::Trusted | Self::Stranger(_) => return Ok(()),
        };
        Err(Failed::new(StatusCode::FORBIDDEN, message))
    }
}

/// Returns the owner of a key.
///
/// # Errors
/// 401 without a key or with an unknown one, 500 if the file of keys cannot be read.
pub(super) fn owner(keys: &Keys, key: Option<&str>) -> Result<Owner, Failed> {
    let Some(key) = key else {
        let message = "an API key is needed; send it as `Authorization: Bearer KEY`, or to the registry as a password \
                       with any user (commands take it from LODE_API_KEY)";
        return Err(Failed::new(StatusCode::UNAUTHORIZED, message));
    };
    let known = keys.find(key).map_err(|error| {
        // Only the operator may see the reason: an invalid line may contain a key instead of its
        // hash.
        tracing::error!("{error:#}");
        Failed::new(StatusCode::INTERNAL_SERVER_ERROR, "the API keys cannot be read; the daemon's log says why")
    })?;
    known.ok_or_else(|| Failed::new(StatusCode::UNAUTHORIZED, "this API key is not known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_from_this_machine() {
        for here in [None, Some("127.0.0.1:1"), Some("[::1]:1"), Some("[::ffff:127.0.0.1]:1")] {
            let sender = here.map(|text| text.parse().expect("an address"));
            assert!(Caller::at(sender, "X").require(Scope::Admin).is_ok(), "{here:?}");
        }
        for elsewhere in ["10.0.0.1:1", "[fd00::1]:1", "[::ffff:10.0.0.1]:1"] {
            let caller = Caller::at(Some(elsewhere.parse().expect("an address")), "X");
            assert!(caller.require(Scope::Run).is_ok() && caller.require(Scope::Read).is_ok());
            let failed = caller.require(Scope::Write).expect_err(elsewhere);
            assert_eq!(failed.status, StatusCode::FORBIDDEN);
            assert!(failed.message.contains("set X"), "{}", failed.message);
        }
    }
}
