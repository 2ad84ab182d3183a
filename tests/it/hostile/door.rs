//! Who is let into the hostile registry, and the token services that lie about it.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::registry::endless;

/// What `me` with the password `secret` sends.
const BASIC: &str = "Basic bWU6c2VjcmV0";

/// How the registry treats those who come without a right to.
pub(crate) enum Door {
    /// Everybody may enter.
    Open,
    /// `me` with a password on each request.
    Basic,
    /// Tokens of this service.
    Tokens(Tokens),
    /// 401 with this challenge, or with none.
    Challenge(Option<&'static str>),
}

/// A token service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// Gives good tokens to who has the password.
    Good,
    /// The first token is good for that many requests, those after it for ever.
    Expiring(u32),
    /// Answers with a page for people.
    Page,
    /// Answers in JSON without a token.
    None,
    /// The answer never ends.
    Endless,
    /// A redirect to itself.
    Loop,
    /// Gives tokens that the registry does not take.
    Refused,
    /// An error at each request.
    Broken,
    /// A token with a line break and a header in it.
    Smuggled,
}

impl Door {
    /// The answer where a request goes no further.
    pub(crate) fn answer(&mut self, host: &str, path: &str, authorization: Option<&str>) -> Option<Response> {
        match self {
            Self::Open => None,
            Self::Basic => (authorization != Some(BASIC)).then(|| refused(Some("Basic realm=\"test\""))),
            Self::Challenge(challenge) => Some(refused(*challenge)),
            Self::Tokens(tokens) if path == "/token" => Some(tokens.token(authorization)),
            Self::Tokens(tokens) => {
                let scope = "repository:library/tiny:pull";
                let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"test\",scope=\"{scope}\"");
                (!tokens.accepts(authorization)).then(|| refused(Some(&challenge)))
            }
        }
    }
}

impl Tokens {
    fn accepts(&mut self, authorization: Option<&str>) -> bool {
        match (self, authorization) {
            (Self::Good | Self::Expiring(0), Some("Bearer later")) => true,
            (Self::Expiring(left), Some("Bearer first")) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    fn token(self, authorization: Option<&str>) -> Response {
        let token = |text: &str| axum::Json(json!({"token": text, "expires_in": 300})).into_response();
        match self {
            Self::Good | Self::Expiring(_) if authorization != Some(BASIC) => refused(None),
            Self::Good | Self::Expiring(0) => token("later"),
            Self::Expiring(_) => token("first"),
            Self::Page => ([("content-type", "text/html")], "<html><body>Sign in</body></html>").into_response(),
            Self::None => axum::Json(json!({"expires_in": 300})).into_response(),
            Self::Endless => endless(),
            Self::Loop => (StatusCode::TEMPORARY_REDIRECT, [("location", "/token")]).into_response(),
            Self::Refused => token("worthless"),
            Self::Broken => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Self::Smuggled => token("a\r\nx-smuggled: yes"),
        }
    }
}

fn refused(challenge: Option<&str>) -> Response {
    let body = Body::from(r#"{"errors":[{"code":"UNAUTHORIZED","message":"as the test wants it"}]}"#);
    let mut answer = (StatusCode::UNAUTHORIZED, body).into_response();
    if let Some(challenge) = challenge {
        answer.headers_mut().insert("www-authenticate", challenge.parse().expect("a header"));
    }
    answer
}
