//! Who may speak to the daemon, and what they may do: hosts and origins, API keys, and calls from other machines.
//!
//! ```text
//! request ──▶ Host known? ──▶ Origin known? ──▶ key for this scope, or nobody needs one ──▶ handler
//!              403              403               401 without a key, 403 with one that may not
//! ```
//!
//! The registry (`/v2`) has users of its own, see `registry::server::access`; only its changes from other machines are
//! looked at here.

pub(crate) mod keys;
mod origin;
mod scope;

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::Daemon;
use super::error::{Failed, in_dialect};
use keys::Keys;
use scope::Need;

pub(super) use origin::cors;
pub(crate) use scope::Scope;

/// Lets requests through whose sender may do what they ask for.
pub(super) async fn check(State(daemon): State<Daemon>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    match allowed(&daemon, &request) {
        Ok(()) => next.run(request).await,
        Err(failed) => in_dialect(&path, failed),
    }
}

fn allowed(daemon: &Daemon, request: &Request) -> Result<(), Failed> {
    let keys = daemon.keys.as_ref();
    origin::check(&daemon.config, keys.is_some(), request.headers())?;
    let need = scope::of(request.method(), request.uri().path());
    let sender = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| *address);
    match (need, keys) {
        (Need::Scope(scope), Some(keys)) => with_key(keys, scope, request.headers()),
        (Need::Scope(scope), None) if scope.changes() => from_here(sender, "LODE_API_KEYS"),
        (Need::RegistryChange, _) if !daemon.config.registry.chosen => from_here(sender, "LODE_REGISTRY_MODE"),
        (Need::Nothing | Need::Scope(_) | Need::RegistryChange, _) => Ok(()),
    }
}

/// The scope that a call needs where there are keys; none is for everybody.
pub(super) fn scope_of(method: &Method, path: &str) -> Option<Scope> {
    match scope::of(method, path) {
        Need::Scope(scope) => Some(scope),
        Need::Nothing | Need::RegistryChange => None,
    }
}

/// The key that a request carries: `Authorization: Bearer` as Ollama's and `OpenAI`'s clients send it, or Anthropic's
/// `x-api-key`.
fn carried(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' ').filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")));
    let other = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer.map(|(_, key)| key).or(other).map(str::trim)
}

fn with_key(keys: &Keys, scope: Scope, headers: &HeaderMap) -> Result<(), Failed> {
    let Some(key) = carried(headers) else {
        let message =
            "an API key is needed; send it as `Authorization: Bearer KEY` (commands take it from LODE_API_KEY)";
        return Err(Failed::new(StatusCode::UNAUTHORIZED, message));
    };
    let known = keys.find(key).map_err(|error| Failed::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")))?;
    let Some(owner) = known else {
        return Err(Failed::new(StatusCode::UNAUTHORIZED, "this API key is not known"));
    };
    if owner.scopes.contains(&scope) {
        return Ok(());
    }
    let message = format!("the API key of `{}` may not do this; it needs the scope `{}`", owner.name, scope.name());
    Err(Failed::new(StatusCode::FORBIDDEN, message))
}

/// Refuses what changes something when another machine asks for it. `remedy` is the variable to set.
fn from_here(sender: Option<SocketAddr>, remedy: &str) -> Result<(), Failed> {
    // A daemon behind a socket that is not TCP has no remote callers.
    if sender.is_none_or(|address| address.ip().to_canonical().is_loopback()) {
        return Ok(());
    }
    let message = format!(
        "this changes what the daemon has, and nobody may do that from another machine without being known; set {remedy} \
         where the daemon runs"
    );
    Err(Failed::new(StatusCode::FORBIDDEN, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_from_this_machine() {
        for here in [None, Some("127.0.0.1:1"), Some("[::1]:1"), Some("[::ffff:127.0.0.1]:1")] {
            let sender = here.map(|text| text.parse().expect("an address"));
            assert!(from_here(sender, "X").is_ok(), "{here:?}");
        }
        for elsewhere in ["10.0.0.1:1", "[fd00::1]:1", "[::ffff:10.0.0.1]:1"] {
            let failed = from_here(Some(elsewhere.parse().expect("an address")), "X").expect_err(elsewhere);
            assert_eq!(failed.status, StatusCode::FORBIDDEN);
            assert!(failed.message.contains("set X"), "{}", failed.message);
        }
    }

    #[test]
    fn keys_are_found_in_either_header() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(header::HeaderName::from_static(name), header::HeaderValue::from_static(value))])
        };
        assert_eq!(carried(&headers("authorization", "Bearer k")), Some("k"));
        assert_eq!(carried(&headers("authorization", "bearer  k ")), Some("k"));
        assert_eq!(carried(&headers("authorization", "Basic k")), None);
        assert_eq!(carried(&headers("x-api-key", "k")), Some("k"));
        assert_eq!(carried(&HeaderMap::new()), None);
    }
}
