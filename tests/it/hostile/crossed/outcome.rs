//! Expected and actual outcomes of a case.

/// The expected outcome of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// The pull fails with an error that names the fault.
    Refused,
    /// The pull succeeds despite the fault.
    Recovers,
    /// Success or failure; only the state afterwards matters.
    Either,
    /// The pull outlasts the test's patience, and ends when the client leaves.
    Outlasts,
}

/// The actual outcome of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Refused,
    Recovered,
    /// The client left.
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
