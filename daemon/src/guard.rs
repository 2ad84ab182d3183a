//! Access control of the daemon: hosts and origins, API keys, and calls from other machines.
//!
//! ```text
//! request ──▶ Host known? ──▶ Origin known? ──▶ key with the scope, or none needed ──▶ handler
//!              403              403               401 without a key, 403 if it lacks the scope
//! ```
//!
//! The same rule holds for the whole port, with one exception: if the registry (`/v2`) has its own
//! users, it controls access to its paths itself, see `registry::server::access`.

mod caller;
pub(crate) mod keys;
mod origin;
pub(crate) mod permissions;
mod scope;

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use registry::server::access::{Mode, TOKEN_PATH, ask_for_password, secret, secret_as_token};
use registry::server::{OnlyHere, base_url};

use crate::daemon::Daemon;
use crate::error::{Failed, in_dialect, of_registry};
use keys::Keys;

pub(crate) use caller::Caller;
pub(crate) use origin::cors;
pub(crate) use permissions::Permission;
use permissions::Permissions;
pub use scope::Scope;

/// How long clients of the registry may cache a token that they get for a key.
const TOKEN_LIFE: Duration = Duration::from_mins(5);

/// Forwards requests whose caller has the necessary permission.
pub(crate) async fn check(State(daemon): State<Daemon>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let gives_token = path == TOKEN_PATH && request.method() == Method::GET && keys_of_registry(&daemon).is_some();
    match allowed(&daemon, &request) {
        // Registry clients fetch a token for a password. Here both are the API key, which is
        // checked at every request.
        Ok(_) if gives_token => secret_as_token(secret(request.headers()).unwrap_or_default(), TOKEN_LIFE),
        Ok(caller) => {
            if let Some(caller) = caller {
                // A caller without write permission must not make this daemon fetch from upstream
                // registries and store the result.
                if caller.require(Scope::Write).is_err() {
                    request.extensions_mut().insert(OnlyHere);
                }
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(failed) if failed.status == StatusCode::UNAUTHORIZED && of_registry(&path) => {
            let asked = if gives_token {
                ask_for_password(&failed.message)
            } else {
                let scheme = if daemon.settings.tls.is_some() { "https" } else { "http" };
                daemon.access.ask(&base_url(scheme, request.headers()), &failed.message)
            };
            asked.into_response()
        }
        Err(failed) => in_dialect(&path, failed),
    }
}

/// Returns the keys that control the registry: the configured keys, if the registry has no users of
/// its own.
fn keys_of_registry(daemon: &Daemon) -> Option<&Keys> {
    daemon.keys.as_ref().filter(|_| !daemon.settings.registry.mode.needs_users())
}

/// Returns the caller of an allowed request.
fn allowed(daemon: &Daemon, request: &Request) -> Result<Option<Caller>, Failed> {
    let headers = request.headers();
    let need = need(&daemon.permissions, request);
    let keys = if matches!(need, Need::Registry(_)) { keys_of_registry(daemon) } else { daemon.keys.as_ref() };
    // Web pages of other sites have neither keys nor passwords. So any host is accepted if one of
    // them protects the request.
    let is_kept = keys.is_some() || (matches!(need, Need::Registry(_)) && !daemon.access.anyone_may_pull());
    origin::check(&daemon.settings, is_kept, request)?;
    let sender = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| *address);
    let registry = &daemon.settings.registry;
    let caller = match (need, keys) {
        (Need::Nothing, _) => return Ok(None),
        (Need::Scope(_), Some(keys)) => Caller::WithKey(caller::owner(keys, carried(headers))?),
        (Need::Registry(_), Some(keys)) => Caller::WithKey(caller::owner(keys, secret(headers).as_deref())?),
        (Need::Scope(_), None) => Caller::at(sender, "LODE_API_KEYS"),
        // A configured mode decides about access; if it needs users, the registry checks them
        // itself.
        (Need::Registry(_), None) if registry.mode == Mode::Open && registry.chosen => Caller::Trusted,
        (Need::Registry(_), None) if registry.mode.needs_users() => Caller::Trusted,
        (Need::Registry(_), None) => Caller::at(sender, "LODE_API_KEYS or LODE_REGISTRY_MODE"),
    };
    match need {
        // With a configured mode and without keys, the registry itself refuses changes.
        Need::Registry(_) if registry.chosen && keys.is_none() => {}
        Need::Scope(scope) | Need::Registry(scope) => caller.require(scope)?,
        Need::Nothing => {}
    }
    Ok(Some(caller))
}

/// The permission that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// No permission.
    Nothing,
    /// A key with this scope, if there are keys.
    Scope(Scope),
    /// A key with this scope, if there are keys and the registry has no users of its own.
    Registry(Scope),
}

/// Returns the permission that a request needs. A call that is not in the table needs the admin
/// scope, unless it only reads; it gets a 404 later.
fn need(permissions: &Permissions, request: &Request) -> Need {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    if *request.method() == Method::OPTIONS {
        return Need::Nothing;
    }
    if of_registry(request.uri().path()) {
        return Need::Registry(if looks { Scope::Read } else { Scope::Write });
    }
    let route = request.extensions().get::<MatchedPath>();
    match route.and_then(|route| permissions.find(route.as_str(), request.method())) {
        Some(Permission::Everybody) => Need::Nothing,
        Some(Permission::Scope(scope)) => Need::Scope(scope),
        None => Need::Scope(if looks { Scope::Read } else { Scope::Admin }),
    }
}

/// Returns the key in a request: `Authorization: Bearer` from clients of Ollama and `OpenAI`, or
/// `x-api-key` from clients of Anthropic.
fn carried(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' ').filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")));
    let other = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer.map(|(_, key)| key).or(other).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

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
