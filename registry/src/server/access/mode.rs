//! Modes: which clients may do which actions.

use std::fmt;

use super::Action;

/// The permissions of clients with and without a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All clients may do everything.
    Open,
    /// All clients may pull; no client may push or delete.
    ReadOnly,
    /// All clients may pull; users may push and delete.
    AnonymousPull,
    /// Users may do everything; clients without a login may do nothing.
    Private,
}

/// The clients that may do an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All clients.
    Anyone,
    /// Users in the file of users.
    User,
    /// No client.
    Nobody,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [Self::Open, Self::ReadOnly, Self::AnonymousPull, Self::Private];

    /// Parses the value of a configuration.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    /// The value in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::ReadOnly => "read-only",
            Self::AnonymousPull => "anonymous-pull",
            Self::Private => "private",
        }
    }

    /// Whether the mode has actions that only users may do.
    pub fn needs_users(self) -> bool {
        matches!(self, Self::AnonymousPull | Self::Private)
    }

    /// The clients that may do `action`.
    pub fn rule(self, action: Action) -> Rule {
        match (self, action) {
            (Self::Open, _) | (Self::ReadOnly | Self::AnonymousPull, Action::Pull) => Rule::Anyone,
            (Self::ReadOnly, Action::Push | Action::Delete) => Rule::Nobody,
            (Self::AnonymousPull, Action::Push | Action::Delete) | (Self::Private, _) => Rule::User,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
