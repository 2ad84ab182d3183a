//! The `WWW-Authenticate` header of a refusal.

use axum::http::HeaderValue;

use super::{Action, TOKEN_PATH};
use crate::RepositoryName;

/// The kind of authentication that the server offers. It accepts both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// The password in each request. For clients that do not fetch tokens from a local address.
    Basic,
    /// A token. The password is sent once, to get it.
    Bearer,
}

impl Challenge {
    /// Parses the value of a configuration.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "basic" => Some(Self::Basic),
            "bearer" => Some(Self::Bearer),
            _ => None,
        }
    }
}

/// Why the token of a request was not sufficient, in the terms of RFC 6750.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenFault {
    /// There was no token.
    Absent,
    /// The token is not ours, or has expired.
    Invalid,
    /// The token has another scope. The client then requests a wider one.
    Scope,
}

/// `Basic realm="lode"`.
pub(super) fn basic() -> HeaderValue {
    HeaderValue::from_static("Basic realm=\"lode\"")
}

/// `Bearer realm="…",service="…",scope="…"`. All values are quoted, because some clients require
/// it.
pub(super) fn bearer(
    base_url: &str,
    service: &str,
    wanted: Option<(&RepositoryName, Action)>,
    fault: TokenFault,
) -> HeaderValue {
    // The URL of the token service uses the host name of the request, which must not end the
    // quotes.
    let base: String = base_url.chars().filter(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\')).collect();
    let base = base.trim_end_matches('/');
    let scope = wanted.map_or_else(|| "registry:catalog:*".to_owned(), |(name, action)| scope(name, action));
    let error = match fault {
        TokenFault::Absent => "",
        TokenFault::Invalid => ",error=\"invalid_token\"",
        TokenFault::Scope => ",error=\"insufficient_scope\"",
    };
    let text = format!("Bearer realm=\"{base}{TOKEN_PATH}\",service=\"{service}\",scope=\"{scope}\"{error}");
    HeaderValue::from_str(&text).unwrap_or_else(|_| basic())
}

fn scope(repository: &RepositoryName, action: Action) -> String {
    // A client that pushes also checks which blobs exist.
    let actions = match action {
        Action::Pull => "pull",
        Action::Push => "pull,push",
        Action::Delete => "pull,delete",
    };
    format!("repository:{repository}:{actions}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_challenges_are_quoted() {
        let name = RepositoryName::parse("library/a").expect("a name");
        let text = |value: HeaderValue| value.to_str().expect("text").to_owned();
        let pushed = bearer("https://h:5000/", "lode", Some((&name, Action::Push)), TokenFault::Absent);
        assert_eq!(
            text(pushed),
            r#"Bearer realm="https://h:5000/v2/token",service="lode",scope="repository:library/a:pull,push""#
        );
        let hostile = bearer("http://h\",x=\"\r\n", "lode", None, TokenFault::Invalid);
        assert_eq!(
            text(hostile),
            r#"Bearer realm="http://h,x=/v2/token",service="lode",scope="registry:catalog:*",error="invalid_token""#
        );
        assert_eq!(text(basic()), r#"Basic realm="lode""#);
    }
}
