//! Who we are at a registry.

use std::fmt;
use std::sync::Arc;

use super::Error;

/// A login at one registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A user and a password, or what a registry takes in its place (a personal access token).
    Password {
        /// The user.
        user: String,
        /// The secret.
        password: String,
    },
    /// What a token service gives tokens for, without a password.
    IdentityToken(String),
    /// A token that the registry itself takes.
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

/// Knows logins.
pub trait Credentials: Send + Sync {
    /// The login at `host` (`docker.io`, `localhost:5000`); `None` where there is none, which is no error. May block; it
    /// is called on a thread made for that, whenever a registry asks.
    fn find(&self, host: &str) -> Result<Option<Credential>, Error>;
}

/// Several places that know logins; the first that knows one is right. An empty chain knows none.
#[derive(Clone, Default)]
pub struct Chain(pub Vec<Arc<dyn Credentials>>);

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} places)", self.0.len())
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
