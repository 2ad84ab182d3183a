//! Errors of operations: a text with its causes, and the class that decides how a caller reacts.
//!
//! Operations on models call many crates, each with its own error type. The types whose variants
//! differ for a caller implement [`Classified`], so `?` and [`Context`] convert them to an
//! [`OperationError`] and keep the class. Errors of parsers and of other libraries become internal
//! ones by [`Unclassified`]. The daemon matches on the class and inspects no type.

use std::fmt;

/// How a caller can react to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The named object does not exist: choose another name.
    NotFound,
    /// The state of the store does not permit it, such as a pinned model or another writer: change
    /// the state or retry later.
    Conflict,
    /// The store cannot be written.
    ReadOnly,
    /// The input is wrong: correct it.
    Invalid,
    /// The model cannot be run by this build.
    CannotRun,
    /// A write failed because the disk is full.
    DiskFull,
    /// The operation needs more space than is free; the text says how to free some.
    NoRoom,
    /// A registry failed.
    Remote(RemoteClass),
    /// Any other error.
    Internal,
}

/// Why a registry failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteClass {
    /// It does not have the object.
    NotFound,
    /// It demands a login, or denies access.
    NoAccess,
    /// There is no connection to it.
    Unreachable,
    /// Any other refusal or failure, such as wrong bytes.
    Refused,
}

/// An error type whose values have a class.
pub trait Classified: std::error::Error + Send + Sync + 'static {
    /// Returns the class of this error.
    fn class(&self) -> ErrorClass;
}

/// The error of an operation.
///
/// # Examples
///
/// ```
/// use lode_content::operation::{Context, ErrorClass, Result};
/// use lode_content::{Digest, Error, ensure};
///
/// fn find(digest: &Digest) -> Result<()> {
///     ensure!(digest.hex().len() == 64, "`{digest}` is not a sha256");
///     Err(Error::BlobNotFound(*digest)).with_context(|| "cannot read the template")
/// }
///
/// let error = find(&Digest::of(b"")).expect_err("no store has it");
/// assert_eq!(error.class(), ErrorClass::Internal);
/// assert!(format!("{error:#}").starts_with("cannot read the template: blob `sha256:e3b0"));
/// ```
pub struct OperationError {
    class: ErrorClass,
    error: anyhow::Error,
}

/// The result of an operation.
pub type Result<T, E = OperationError> = std::result::Result<T, E>;

impl OperationError {
    /// Creates an internal error from a text.
    pub fn text(text: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self { class: ErrorClass::Internal, error: anyhow::Error::msg(text) }
    }

    /// Wraps an error without a class.
    pub fn internal(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { class: ErrorClass::Internal, error: error.into() }
    }

    /// How a caller can react.
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// Replaces the class, for a caller that knows better how to react.
    #[must_use]
    pub fn with_class(self, class: ErrorClass) -> Self {
        Self { class, ..self }
    }

    /// Adds what was attempted; the class stays.
    #[must_use]
    pub fn context(self, context: impl fmt::Display + Send + Sync + 'static) -> Self {
        Self { error: self.error.context(context), ..self }
    }

    /// Returns the text with all causes. A cause is left out if the text so far ends with it.
    pub fn with_causes(&self) -> String {
        crate::text::error_with_causes(self.error.as_ref())
    }

    /// Converts the error for an interface that takes any error.
    pub fn into_boxed(self) -> Box<dyn std::error::Error + Send + Sync> {
        self.error.into()
    }
}

impl<E: Classified> From<E> for OperationError {
    fn from(error: E) -> Self {
        Self { class: error.class(), error: error.into() }
    }
}

impl From<anyhow::Error> for OperationError {
    fn from(error: anyhow::Error) -> Self {
        Self { class: ErrorClass::Internal, error }
    }
}

/// For programs and tests, which only print errors.
impl From<OperationError> for anyhow::Error {
    fn from(error: OperationError) -> Self {
        error.error
    }
}

/// The text; with `{:#}`, the text and its causes.
impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl fmt::Debug for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

/// Adds what was attempted to an error. The text is for users: ``cannot read `config.json` ``.
pub trait Context<T> {
    /// Adds a text.
    ///
    /// # Errors
    /// The error with the text.
    fn context(self, context: impl fmt::Display + Send + Sync + 'static) -> Result<T>;

    /// Adds a text that is made only for an error.
    ///
    /// # Errors
    /// The error with the text.
    fn with_context<C: fmt::Display + Send + Sync + 'static>(self, context: impl FnOnce() -> C) -> Result<T>;
}

impl<T, E: Into<OperationError>> Context<T> for std::result::Result<T, E> {
    fn context(self, context: impl fmt::Display + Send + Sync + 'static) -> Result<T> {
        self.map_err(|error| error.into().context(context))
    }

    fn with_context<C: fmt::Display + Send + Sync + 'static>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.map_err(|error| error.into().context(context()))
    }
}

/// Converts errors of types without a class, such as those of parsers and of other libraries.
pub trait Unclassified<T> {
    /// Makes the error an internal one.
    ///
    /// # Errors
    /// The error.
    fn internal(self) -> Result<T>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Unclassified<T> for std::result::Result<T, E> {
    fn internal(self) -> Result<T> {
        self.map_err(OperationError::internal)
    }
}

/// A missing value is an internal error.
impl<T> Context<T> for Option<T> {
    fn context(self, context: impl fmt::Display + Send + Sync + 'static) -> Result<T> {
        self.ok_or_else(|| OperationError::text(context.to_string()))
    }

    fn with_context<C: fmt::Display + Send + Sync + 'static>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.ok_or_else(|| OperationError::text(context().to_string()))
    }
}

/// Returns with an [`OperationError`]: from a format text, or from a typed error.
#[macro_export]
macro_rules! bail {
    ($text:literal $($arguments:tt)*) => {
        return Err($crate::operation::OperationError::text(format!($text $($arguments)*)))
    };
    ($error:expr) => {
        return Err($crate::operation::OperationError::from($error))
    };
}

/// Returns with an [`OperationError`] unless a condition holds: see [`bail!`](crate::bail).
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($error:tt)+) => {
        if !$condition {
            $crate::bail!($($error)+);
        }
    };
}
