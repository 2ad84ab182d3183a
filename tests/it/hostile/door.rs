//! Authentication of the hostile registry, with token services that misbehave.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::registry::endless;

/// The `Authorization` header of the user `me` with the password `secret`.
const BASIC: &str = "Basic bWU6c2VjcmV0";

/// The authentication that the registry requires.
pub(crate) enum Door {
    /// No authentication.
    Open,
    /// `me` with a password on each request.
    Basic,
    /// Tokens of this service.
    Tokens(Tokens),
    /// 401 with this challenge, or without one.
    Challenge(Option<&'static str>),
}

/// A token service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// Issues valid tokens for the password.
    Good,
    /// The first token is valid for so many requests, later tokens stay valid.
    Expiring(u32),
    /// Responds with an HTML page.
    Page,
    /// Responds with JSON without a token.
    None,
    /// Responds with an endless body.
    Endless,
    /// Redirects to itself.
    Loop,
    /// Issues tokens that the registry refuses.
    Refused,
    /// Responds with an error.
    Broken,
    /// Issues a token that contains a line break and a header.
    Smuggled,
}

impl Door {
    /// Returns the response to an unauthorized request, or `None` if the request may proceed.
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
