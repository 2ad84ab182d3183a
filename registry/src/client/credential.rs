//! Logins at registries.

use std::fmt;
use std::sync::Arc;

use super::Error;

/// A login at one registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A user and a password, or a personal access token in place of the password.
    Password {
        /// The user.
        user: String,
        /// The secret.
        password: String,
    },
    /// A refresh token, which a token service exchanges for access tokens without a password.
    IdentityToken(String),
    /// A token that the registry itself accepts.
    Bearer(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, .. } => write!(f, "Password({user}, …)"),
            Self::IdentityToken(_) => f.write_str("IdentityToken(…)"),
            Self::Bearer(_) => f.write_str("Bearer(…)"),
        }
    }
}

/// A source of logins.
pub trait Credentials: Send + Sync {
    /// Returns the login at `host` (`docker.io`, `localhost:5000`), or `None`. May block. The
    /// client calls it each time a registry demands a login.
    fn find(&self, host: &str) -> Result<Option<Credential>, Error>;
}

/// Several sources of logins, asked in order until one has a login. An error ends the search.
#[derive(Clone, Default)]
pub struct Chain(pub Vec<Arc<dyn Credentials>>);

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} sources)", self.0.len())
    }
}

impl Credentials for Chain {
    fn find(&self, host: &str) -> Result<Option<Credential>, Error> {
        for place in &self.0 {
            if let Some(credential) = place.find(host)? {
                return Ok(Some(credential));
            }
        }
        Ok(None)
    }
}
