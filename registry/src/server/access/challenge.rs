//! What a refused client is told to come back with: the `WWW-Authenticate` header.

use axum::http::HeaderValue;

use super::{Action, TOKEN_PATH};
use crate::RepositoryName;

/// Which way of proving who one is the server offers. It accepts both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// The password with every request. For clients that will not fetch a token from an address in a local network.
    Basic,
    /// A token, for which the password is sent once.
    Bearer,
}

impl Challenge {
    /// Reads what a configuration says.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "basic" => Some(Self::Basic),
            "bearer" => Some(Self::Bearer),
            _ => None,
        }
    }
}

/// Why a token that came with the request was not enough; the words are those of RFC 6750.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenFault {
    /// There was none.
    Absent,
    /// It is not ours, or over.
    Invalid,
    /// It is for something else. Clients that see this ask for a wider one.
    Scope,
}

/// `Basic realm="lode"`.
pub(super) fn basic() -> HeaderValue {
    HeaderValue::from_static("Basic realm=\"lode\"")
}

/// `Bearer realm="…",service="…",scope="…"`. All values are quoted, as some clients read no others.
pub(super) fn bearer(
    base_url: &str,
    service: &str,
    wanted: Option<(&RepositoryName, Action)>,
    fault: TokenFault,
) -> HeaderValue {
    // Where a token is fetched is told to whoever asked, by the name that they asked under; it must not end the quotes.
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
    // Whoever pushes also looks what is there.
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
