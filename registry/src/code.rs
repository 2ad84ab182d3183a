//! The error codes of the OCI specification, and their JSON.

use serde::{Deserialize, Serialize};

/// Reasons why a registry refuses a request, as the specification defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The blob is not in this repository.
    BlobUnknown,
    /// The upload cannot be continued.
    BlobUploadInvalid,
    /// There is no such upload.
    BlobUploadUnknown,
    /// The digest is malformed, or the bytes have another one.
    DigestInvalid,
    /// The manifest names a blob that is not in this repository.
    ManifestBlobUnknown,
    /// The manifest is malformed.
    ManifestInvalid,
    /// The manifest is not in this repository.
    ManifestUnknown,
    /// The repository's name is malformed.
    NameInvalid,
    /// There is no such repository.
    NameUnknown,
    /// The content has another length than announced.
    SizeInvalid,
    /// The authenticated user may not do this.
    Denied,
    /// The client must authenticate.
    Unauthorized,
    /// The registry does not support the operation.
    Unsupported,
    /// Too many requests.
    TooManyRequests,
}

impl ErrorCode {
    /// The code in the JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BlobUnknown => "BLOB_UNKNOWN",
            Self::BlobUploadInvalid => "BLOB_UPLOAD_INVALID",
            Self::BlobUploadUnknown => "BLOB_UPLOAD_UNKNOWN",
            Self::DigestInvalid => "DIGEST_INVALID",
            Self::ManifestBlobUnknown => "MANIFEST_BLOB_UNKNOWN",
            Self::ManifestInvalid => "MANIFEST_INVALID",
            Self::ManifestUnknown => "MANIFEST_UNKNOWN",
            Self::NameInvalid => "NAME_INVALID",
            Self::NameUnknown => "NAME_UNKNOWN",
            Self::SizeInvalid => "SIZE_INVALID",
            Self::Denied => "DENIED",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::Unsupported => "UNSUPPORTED",
            Self::TooManyRequests => "TOOMANYREQUESTS",
        }
    }
}

/// The body of an error response: `{"errors": [{"code", "message", "detail"}]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One or more reasons.
    pub errors: Vec<ErrorEntry>,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// A code as in [`ErrorCode::as_str`]; registries may define their own codes.
    #[serde(default)]
    pub code: String,
    /// A message for people.
    #[serde(default)]
    pub message: String,
    /// Details for programs, as any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

impl ErrorBody {
    /// Creates a body with a single reason.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { errors: vec![ErrorEntry { code: code.as_str().to_owned(), message: message.into(), detail: None }] }
    }

    /// The text to display for a response: its messages, or the body itself if it has another
    /// format.
    pub fn summary(body: &[u8]) -> String {
        let shown = |text: &str| text.trim().chars().take(300).collect::<String>();
        let Ok(parsed) = serde_json::from_slice::<Self>(body) else { return shown(&String::from_utf8_lossy(body)) };
        let one = |entry: &ErrorEntry| match (entry.code.as_str(), entry.message.as_str()) {
            ("", message) => message.to_owned(),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        shown(&parsed.errors.iter().map(one).collect::<Vec<_>>().join("; "))
    }
}
