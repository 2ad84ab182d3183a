//! The credentials of a request: the `Authorization` header.

use std::fmt;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Maximum length of the header in bytes. Tokens of this server are shorter.
const MAX_HEADER: usize = 16 << 10;
/// Clients disagree on padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A password that has not been checked yet.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(pub(super) String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(hidden)")
    }
}

/// The credentials that a request claims.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// There are none.
    Absent,
    /// A user and a password.
    Basic {
        /// The name of the user.
        user: String,
        /// The password, not checked yet.
        password: Password,
    },
    /// A token, not checked yet.
    Bearer(String),
    /// The header is malformed, for this reason.
    Malformed(&'static str),
}

impl Credentials {
    /// Parses the header.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), second) = (values.next(), values.next()) else { return Self::Absent };
        if second.is_some() {
            return Self::Malformed("there is more than one `Authorization` header");
        }
        if value.len() > MAX_HEADER {
            return Self::Malformed("the `Authorization` header is too long");
        }
        let Some((scheme, rest)) = value.to_str().ok().and_then(|text| text.trim().split_once(' ')) else {
            return Self::Malformed("the `Authorization` header has no scheme; expected `Basic` or `Bearer`");
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            return Self::Bearer(rest.trim().to_owned());
        }
        if scheme.eq_ignore_ascii_case("basic") {
            return Self::basic(rest.trim());
        }
        Self::Malformed("the scheme of the `Authorization` header is not known; expected `Basic` or `Bearer`")
    }

    fn basic(encoded: &str) -> Self {
        let decoded = LENIENT.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match decoded.as_deref().and_then(|text| text.split_once(':')) {
            // Some clients send this if they have no password and the registry offers `Basic`.
            Some(("", "")) => Self::Absent,
            Some((user, password)) => Self::Basic { user: user.to_owned(), password: Password(password.to_owned()) },
            None => Self::Malformed("the credentials are not base64 of `user:password`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(values: &[&str]) -> Credentials {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a header"));
        }
        Credentials::of(&headers)
    }

    fn basic(user: &str, password: &str) -> Credentials {
        Credentials::Basic { user: user.to_owned(), password: Password(password.to_owned()) }
    }

    #[test]
    fn access_reads_credentials() {
        assert_eq!(read(&[]), Credentials::Absent);
        assert_eq!(read(&["Basic YW5uYTpzZWNyZXQ="]), basic("anna", "secret"));
        assert_eq!(read(&["basic  YW5uYTpzZWNyZXQ"]), basic("anna", "secret"), "any case, no padding");
        assert_eq!(read(&["Basic YTpiOmM="]), basic("a", "b:c"), "a password may have colons");
        assert_eq!(read(&["Basic Og=="]), Credentials::Absent);
        assert_eq!(read(&["bearer  abc"]), Credentials::Bearer("abc".to_owned()));
        let long = format!("Bearer {}", "a".repeat(MAX_HEADER));
        for bad in ["", "Basic", "Basic !", "Basic YWJj", "Basic //8=", "Digest a", long.as_str()] {
            assert!(matches!(read(&[bad]), Credentials::Malformed(_)), "{bad:.40}");
        }
        assert!(matches!(read(&["Bearer a", "Bearer b"]), Credentials::Malformed(_)));
        assert!(!format!("{:?}", basic("anna", "secret")).contains("secret"));
    }
}
