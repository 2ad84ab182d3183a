//! The error codes of the specification, and the JSON that carries them.

use serde::{Deserialize, Serialize};

/// Why a registry refuses a request. The meaning of each is the specification's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The blob is not in this repository.
    BlobUnknown,
    /// The upload cannot go on.
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
    /// The length of the content is not what was announced.
    SizeInvalid,
    /// Somebody who is known may not do this.
    Denied,
    /// Who asks must say who they are.
    Unauthorized,
    /// This registry does not do that.
    Unsupported,
    /// Too many requests.
    TooManyRequests,
}

impl ErrorCode {
    /// The code as it stands in the JSON.
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

/// The body of a refusal: `{"errors": [{"code", "message", "detail"}]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One or more reasons.
    pub errors: Vec<ErrorEntry>,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// What [`ErrorCode::as_str`] gives; registries have codes of their own too.
    #[serde(default)]
    pub code: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// For programs; any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

impl ErrorBody {
    /// A single reason.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { errors: vec![ErrorEntry { code: code.as_str().to_owned(), message: message.into(), detail: None }] }
    }

    /// What a person should read of an answer's body: the messages, or the text itself where it is no such JSON.
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
