//! The token service: `GET /v2/token?service=…&scope=repository:NAME:pull,push&scope=…`.
//!
//! Users get a token for their password. Clients without a login get one if the mode allows them
//! something. The token grants the requested scopes as far as the mode allows, which may be
//! nothing; the client finds out when it uses the token.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use reqwest::Url;
use serde::Serialize;

use super::credentials::Credentials;
use super::provider::{ProvidedLogin, TokenProblem};
use super::scope::Grants;
use super::token::{AccessToken, TokenUser};
use super::{Access, Action, Refusal, Rule, WRONG_PASSWORD, challenge, keys_unavailable};
use crate::ErrorCode;
use crate::code::ErrorBody;

/// Maximum length of the query in bytes.
const MAX_QUERY: usize = 8 << 10;

/// An authenticated client.
enum Login {
    /// A user of the file of users.
    Local(String),
    /// The holder of a token of an identity provider.
    Provided(ProvidedLogin),
}

/// The response with a token. Clients read it from one field or the other.
#[derive(Serialize)]
struct Given {
    token: String,
    access_token: String,
    expires_in: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    issued_at: Option<String>,
}

/// The response of [`TOKEN_PATH`](super::TOKEN_PATH) for servers that accept secrets directly: the
/// token is the secret.
pub fn secret_as_token(secret: String, life: Duration) -> Response {
    let given = Given { access_token: secret.clone(), token: secret, expires_in: life.as_secs(), issued_at: None };
    not_stored(given)
}

/// The refusal of a token request that demands a password.
pub fn ask_for_password(message: &str) -> Refusal {
    Refusal::Unauthorized { challenge: challenge::basic(), message: message.to_owned() }
}

fn not_stored(given: Given) -> Response {
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(given)).into_response()
}

impl Access {
    /// Responds to a `GET` of [`TOKEN_PATH`](super::TOKEN_PATH). `query` is the query of the
    /// request, or empty.
    pub async fn token(&self, headers: &HeaderMap, query: &str) -> Response {
        let wanted = match wanted(query) {
            Ok(wanted) => wanted,
            Err(message) => {
                return (StatusCode::BAD_REQUEST, Json(ErrorBody::new(ErrorCode::Unsupported, message)))
                    .into_response();
            }
        };
        let login = match self.login(headers).await {
            Ok(login) => login,
            Err(refusal) => return refusal.into_response(),
        };
        let now = self.0.clock.seconds();
        let (token, life) = self.granted(wanted, login, now);
        let token = self.0.signer.sign(&token, now, life);
        let issued_at = i64::try_from(now).ok().and_then(|now| Timestamp::from_second(now).ok());
        let issued_at = issued_at.map(|time| time.to_string());
        not_stored(Given { access_token: token.clone(), token, expires_in: life, issued_at })
    }

    /// The token for a client, as far as it may have what it wants, and its life in seconds.
    fn granted(&self, wanted: Grants, login: Option<Login>, now: u64) -> (AccessToken, u64) {
        let (mode, life) = (self.0.mode, self.0.token_life.as_secs());
        let grants = wanted.allowed(mode, login.is_some());
        match login {
            None => (AccessToken { user: None, grants }, life),
            Some(Login::Local(user)) => (AccessToken { user: Some(TokenUser::Local(user)), grants }, life),
            Some(Login::Provided(login)) => {
                let grants = grants.only(|name, action| mode.rule(action) == Rule::Anyone || login.may(name, action));
                // The token does not outlive the one that it is made for.
                let life = life.min(login.expires.saturating_sub(now));
                (AccessToken { user: Some(TokenUser::Provided(login.user)), grants }, life)
            }
        }
    }

    /// Authenticates the client of a token request.
    async fn login(&self, headers: &HeaderMap) -> Result<Option<Login>, Refusal> {
        // A token request always demands the password, regardless of the configured challenge.
        let refused = ask_for_password;
        if !self.0.mode.needs_users() {
            return Ok(None);
        }
        match Credentials::of(headers) {
            Credentials::Absent if self.0.mode.rule(Action::Pull) == Rule::Anyone => Ok(None),
            Credentials::Absent => Err(refused("this registry is for its users: log in first")),
            Credentials::Basic { user, password } => {
                match self.0.providers.verify(&password.0, self.0.clock.seconds()).await {
                    None => {}
                    Some(Ok(login)) => return Ok(Some(Login::Provided(login))),
                    Some(Err(TokenProblem::Invalid(reason))) => return Err(refused(&reason)),
                    Some(Err(TokenProblem::Unavailable)) => return Err(keys_unavailable()),
                }
                if !self.authenticate(&user, &password).await? {
                    return Err(refused(WRONG_PASSWORD));
                }
                Ok(Some(Login::Local(user)))
            }
            Credentials::Bearer(_) => Err(refused("a token request needs a password, not a token")),
            Credentials::Malformed(reason) => Err(refused(reason)),
        }
    }
}

/// The scopes of a query. Other parameters of clients (`service`, `account`, `client_id`, …) are
/// ignored.
fn wanted(query: &str) -> Result<Grants, String> {
    if query.len() > MAX_QUERY {
        return Err(format!("the query is longer than {MAX_QUERY} bytes; ask for several tokens"));
    }
    let mut url = Url::parse("http://localhost/").map_err(|e| e.to_string())?;
    url.set_query(Some(query));
    let scopes: Vec<_> = url.query_pairs().filter(|(key, _)| key == "scope").map(|(_, value)| value).collect();
    Grants::parse(scopes.iter().map(AsRef::as_ref))
}
