//! What is to come of a case.

/// What is to come of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// It fails, and says of what.
    Refused,
    /// It succeeds in spite of all.
    Recovers,
    /// One of these: what counts is what is left.
    Either,
    /// It goes on for longer than anybody here waits. When the client leaves, it ends.
    Outlasts,
}

/// What came of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Refused,
    Recovered,
    /// The client left it.
    Left,
}

impl Expect {
    pub(super) fn allows(self, outcome: Outcome) -> bool {
        match self {
            Self::Refused => outcome == Outcome::Refused,
            Self::Recovers => outcome == Outcome::Recovered,
            Self::Either => outcome != Outcome::Left,
            Self::Outlasts => outcome == Outcome::Left,
        }
    }
}
