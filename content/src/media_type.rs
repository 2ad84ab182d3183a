//! Media types of blobs.

use std::borrow::Cow;
use std::fmt;

/// The media type of a descriptor, without parameters.
///
/// # Examples
///
/// ```
/// use lode_content::MediaType;
///
/// let layer = MediaType::parse("application/vnd.oci.image.layer.v1.tar")?;
/// assert_eq!(layer.as_str(), "application/vnd.oci.image.layer.v1.tar");
/// assert!(MediaType::parse("no slash").is_err());
/// # Ok::<(), lode_content::media_type::ParseMediaTypeError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaType(Cow<'static, str>);

/// The error for a text that is not a media type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a media type: expected `type/subtype` in printable ASCII, 255 characters at most")]
pub struct ParseMediaTypeError(String);

impl MediaType {
    /// Bytes of an unknown kind.
    pub const OCTET_STREAM: Self = Self::known("application/octet-stream");

    /// Wraps a media type that is known at compile time, without a check.
    pub const fn known(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// Parses a media type from untrusted text.
    pub fn parse(text: &str) -> Result<Self, ParseMediaTypeError> {
        let printable = text.bytes().all(|b| b.is_ascii_graphic());
        let parts = text.split('/').filter(|part| !part.is_empty()).count();
        if printable && parts == 2 && text.matches('/').count() == 1 && text.len() <= 255 {
            Ok(Self(Cow::Owned(text.to_owned())))
        } else {
            Err(ParseMediaTypeError(text.chars().take(80).collect()))
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MediaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MediaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses() {
        assert!(MediaType::parse("application/vnd.oci.image.manifest.v1+json").is_ok());
        for bad in ["", "application", "a/b/c", "/b", "a/", "a/b c", "a/\n", "a/é", &format!("a/{}", "b".repeat(254))]
        {
            assert!(MediaType::parse(bad).is_err(), "{bad} was accepted");
        }
    }
}
