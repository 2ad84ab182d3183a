//! Why a request cannot be served as it is.

/// The request is at fault: one of its fields, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field, as a path: `messages[0].content`.
    pub param: String,
    /// What was expected and found, and what to do.
    pub message: String,
}

impl Refusal {
    /// A refusal because of one field.
    pub fn new(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: param.into(), message: message.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.param, self.message)
    }
}

impl std::error::Error for Refusal {}
