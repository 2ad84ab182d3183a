//! What API keys may allow.

use std::str::FromStr;

/// What an API key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Look at models, and read them out.
    Read,
    /// Let models compute.
    Run,
    /// Add, change and remove models.
    Write,
    /// Look after the store.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Run, Self::Write, Self::Admin];

    /// As files of keys have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// Whether it is about more than looking and computing.
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
