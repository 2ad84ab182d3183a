//! The scopes of API keys.

use std::str::FromStr;

/// An operation that an API key may allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Read models and their contents.
    Read,
    /// Run models.
    Run,
    /// Add, change and remove models.
    Write,
    /// Maintain the store.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Read, Self::Run, Self::Write, Self::Admin];

    /// Returns the name in files of keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// Whether the scope allows changes.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Admin)
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| format!("`{text}` is not a scope; there are read, run, write and admin"))
    }
}
