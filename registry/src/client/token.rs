//! Token services, which issue tokens for a registry, often on another host.
//!
//! Protocol: `GET realm?service=…&scope=…`, with user and password if there are any; a `POST` for
//! an identity token.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Response, Url};
use serde::Deserialize;

use super::credential::Credential;
use super::payload::Payload;
use super::wire::{Outgoing, Redirects, Wire};
use super::{Error, RedirectPolicy};

/// Maximum length of a token service's response in bytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// Maximum length of a token in bytes: it must fit into a header.
const LONGEST_TOKEN: usize = 64 * 1024;
/// Default lifetime of a token in seconds.
const DEFAULT_SECONDS: u64 = 60;
/// Maximum lifetime of a token in seconds; longer ones are cut.
const MOST_SECONDS: u64 = 24 * 60 * 60;

/// The parameters of a token request.
#[derive(Debug)]
pub(super) struct TokenRequest<'a> {
    pub(super) realm: &'a Url,
    pub(super) service: Option<&'a str>,
    pub(super) scopes: Vec<String>,
}

/// A token as a header, with its lifetime.
pub(super) struct BearerToken {
    pub(super) header: HeaderValue,
    pub(super) lifetime: Duration,
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
    #[serde(default)]
    expires_in: Option<serde_json::Value>,
}

/// Requests a token.
///
/// # Errors
/// [`Error::Unauthorized`] if the service refuses or its response is invalid; errors of
/// [`Wire::exchange`] if there is no response.
pub(super) async fn request(
    wire: &Wire,
    wanted: &TokenRequest<'_>,
    credential: Option<&Credential>,
) -> Result<BearerToken, Error> {
    check_realm(&wire.redirect_policy, &wire.base, wanted.realm)
        .map_err(|reason| Error::unauthorized(&wire.name, reason))?;
    let response = match credential {
        Some(Credential::IdentityToken(secret)) => exchange_identity(wire, wanted, secret).await?,
        Some(Credential::Password { user, password }) => ask(wire, wanted, Some(&basic(user, password))).await?,
        Some(Credential::Bearer(_)) | None => ask(wire, wanted, None).await?,
    };
    let place = wanted.realm.host_str().unwrap_or("?").to_owned();
    let failed = |reason: String| Error::unauthorized(&wire.name, format!("its token service `{place}` {reason}"));
    let status = response.status();
    if !status.is_success() {
        let summary = wire.summary(response).await;
        return Err(failed(format!("answered {status}: {summary}")));
    }
    let body = match wire.body(response, LONGEST_ANSWER).await {
        Err(Error::TooLarge { limit, .. }) => return Err(failed(format!("answered with more than {limit} bytes"))),
        body => body?,
    };
    read(&body).map_err(|reason| failed(reason.to_owned()))
}

/// `user:password` as a header.
pub(super) fn basic(user: &str, password: &str) -> HeaderValue {
    let text = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    let mut value = HeaderValue::from_str(&text).expect("invariant: base64 is visible ASCII");
    value.set_sensitive(true);
    value
}

/// A token as a header.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, &'static str> {
    if token.is_empty() || token.len() > LONGEST_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("gave a token that cannot be one: expected visible ASCII, 64 KiB at most");
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| "gave a malformed token")?;
    value.set_sensitive(true);
    Ok(value)
}

async fn ask(wire: &Wire, wanted: &TokenRequest<'_>, authorization: Option<&HeaderValue>) -> Result<Response, Error> {
    let mut url = wanted.realm.clone();
    append(&mut url, wanted.service, &wanted.scopes);
    let outgoing = Outgoing {
        method: &Method::GET,
        url: &url,
        headers: &HeaderMap::new(),
        payload: &Payload::None,
        authorization,
        redirects: Redirects::Follow,
    };
    wire.exchange(&outgoing).await
}

async fn exchange_identity(wire: &Wire, wanted: &TokenRequest<'_>, secret: &str) -> Result<Response, Error> {
    // A form has the syntax of a query.
    let mut form = wanted.realm.clone();
    form.set_query(None);
    form.query_pairs_mut()
        .append_pair("grant_type", "refresh_token")
        .append_pair("client_id", "lode")
        .append_pair("refresh_token", secret);
    if let Some(service) = wanted.service {
        form.query_pairs_mut().append_pair("service", service);
    }
    // OAuth has one `scope` parameter, separated by spaces.
    if !wanted.scopes.is_empty() {
        form.query_pairs_mut().append_pair("scope", &wanted.scopes.join(" "));
    }
    let body = Bytes::from(form.query().unwrap_or_default().to_owned());
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    let outgoing = Outgoing {
        method: &Method::POST,
        url: wanted.realm,
        headers: &headers,
        payload: &Payload::Bytes(body),
        authorization: None,
        redirects: Redirects::Refuse,
    };
    wire.exchange(&outgoing).await
}

fn append(url: &mut Url, service: Option<&str>, scopes: &[String]) {
    if service.is_none() && scopes.is_empty() {
        return;
    }
    let mut pairs = url.query_pairs_mut();
    pairs.extend_pairs(service.map(|service| ("service", service)));
    pairs.extend_pairs(scopes.iter().map(|scope| ("scope", scope)));
}

/// Checks the address of a token service, which receives the password. It needs TLS, unless the
/// registry itself has none, and must not be nearer to this machine than the registry.
fn check_realm(redirect_policy: &RedirectPolicy, base: &Url, realm: &Url) -> Result<(), String> {
    let place: String = realm.host_str().unwrap_or_default().chars().take(100).collect();
    let refused = |reason: &str| Err(format!("its token service at `{place}` is refused: {reason}"));
    if !realm.username().is_empty() || realm.password().is_some() {
        return refused("its address contains a user name or a password");
    }
    redirect_policy.check_step(base, realm).or_else(|reason| refused(&reason))
}

fn read(body: &[u8]) -> Result<BearerToken, &'static str> {
    let answer: TokenAnswer =
        serde_json::from_slice(body).map_err(|_| "gave no token: its answer is not the expected JSON")?;
    let token = [answer.token, answer.access_token].into_iter().flatten().find(|token| !token.is_empty());
    let header = bearer(&token.ok_or("gave no token: `token` and `access_token` are missing")?)?;
    let seconds = answer.expires_in.as_ref().map_or(Some(DEFAULT_SECONDS), |value| match value {
        serde_json::Value::String(text) => text.parse().ok(),
        value => value.as_u64().or_else(|| value.as_f64().filter(|seconds| *seconds >= 0.0).map(whole)),
    });
    let lifetime = Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS).min(MOST_SECONDS));
    Ok(BearerToken { header, lifetime })
}

#[expect(clippy::cast_sign_loss, reason = "the caller checked the sign; too large a number becomes the largest")]
fn whole(seconds: f64) -> u64 {
    seconds as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_answers_and_refuses_lies() {
        let cases: [(&str, Option<(&str, u64)>); 16] = [
            (r#"{"token":"abc","expires_in":300}"#, Some(("Bearer abc", 300))),
            (r#"{"access_token":"abc"}"#, Some(("Bearer abc", 60))),
            (r#"{"token":"","access_token":"abc"}"#, Some(("Bearer abc", 60))),
            (r#"{"token":null,"access_token":"abc","expires_in":null}"#, Some(("Bearer abc", 60))),
            (r#"{"token":"a","access_token":"b","expires_in":"90","issued_at":"x"}"#, Some(("Bearer a", 90))),
            (r#"{"token":"a","expires_in":12.5}"#, Some(("Bearer a", 12))),
            (r#"{"token":"a","expires_in":-5}"#, Some(("Bearer a", 60))),
            (r#"{"token":"a","expires_in":1e300}"#, Some(("Bearer a", 86_400))),
            (r#"{"token":"a","expires_in":[]}"#, Some(("Bearer a", 60))),
            (r#"{"token":"a\nX-Evil: 1"}"#, None),
            (r#"{"token":"a b"}"#, None),
            (r#"{"token":"é"}"#, None),
            (r#"{"token":7}"#, None),
            ("{}", None),
            ("<html>", None),
            ("", None),
        ];
        for (body, expect) in cases {
            let found = read(body.as_bytes()).ok();
            let found = found.as_ref().map(|token| (token.header.to_str().expect("ASCII"), token.lifetime.as_secs()));
            assert_eq!(found, expect, "{body}");
        }
        assert!(read(format!(r#"{{"token":"{}"}}"#, "a".repeat(70_000)).as_bytes()).is_err());
    }

    #[test]
    fn sends_secrets_only_where_they_are_safe() {
        let url = |text: &str| Url::parse(text).expect("a URL of this test");
        let cases = [
            ("https://r.example", "https://auth.example/token", true),
            ("https://r.example", "http://auth.example/token", false),
            ("https://r.example", "http://127.0.0.1:99/token", false),
            ("https://r.example", "https://127.0.0.1:99/token", false),
            ("http://127.0.0.1:5000", "http://127.0.0.1:99/token", true),
            ("http://r.example", "http://auth.example/token", true),
            ("http://r.example", "file:///etc/passwd", false),
            ("https://r.example", "https://me:you@auth.example/", false),
        ];
        for (base, realm, expect) in cases {
            let base = url(base);
            let redirect_policy = RedirectPolicy::for_server(&base, None, &[]);
            assert_eq!(check_realm(&redirect_policy, &base, &url(realm)).is_ok(), expect, "{base} {realm}");
        }
    }

    #[test]
    fn keeps_the_query_of_a_realm() {
        let mut url = Url::parse("https://a/t?account=me").expect("a URL");
        append(&mut url, Some("my service"), &["repository:a:pull".to_owned(), "repository:b:pull".to_owned()]);
        let query = "account=me&service=my+service&scope=repository%3Aa%3Apull&scope=repository%3Ab%3Apull";
        assert_eq!(url.query(), Some(query));
    }
}
