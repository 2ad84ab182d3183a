//! The error for a request that cannot be served as it is.

/// An invalid or unsupported field of a request, and why it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Path of the field, such as `messages[0].content`.
    pub param: String,
    /// The expected and the actual value, and how to fix the request.
    pub message: String,
}

impl Refusal {
    /// Creates a refusal of one field.
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
