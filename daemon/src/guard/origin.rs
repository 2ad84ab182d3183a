//! Checks of the hosts and origins that requests name.
//!
//! A web page can make its visitor's browser send requests to this daemon. Two headers reveal that:
//! `Host` with a foreign name (DNS rebinding), and `Origin`, which browsers add to requests of
//! pages. Programs send no origin.
//!
//! A daemon that serves only this machine accepts only names of this machine. A daemon that serves
//! other machines also accepts addresses and names of local networks. It accepts any name if TLS or
//! an API key already excludes pages of other sites. `LODE_ALLOWED_HOSTS` and `LODE_ORIGINS` add
//! further names, and origins of pages that may call the daemon.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::Failed;
use crate::settings::Settings;

/// How long a browser may cache the result of a preflight request.
const PREFLIGHT_AGE: Duration = Duration::from_hours(12);

/// Schemes of pages that local programs contain; no web site can use them. The schemes of browser
/// extensions are excluded, because installing an extension does not imply a permission to remove
/// models.
const PROGRAMS: [&str; 5] = ["app", "file", "tauri", "vscode-webview", "vscode-file"];

/// Names of the host machine inside of containers. `.internal` is reserved: no public name server
/// resolves it.
const CONTAINERS: [&str; 3] = ["host.docker.internal", "gateway.docker.internal", "host.containers.internal"];

/// Refuses requests with an unknown host or origin. `is_kept` means that the request needs a key or
/// a password anyway.
pub(super) fn check(settings: &Settings, is_kept: bool, request: &Request) -> Result<(), Failed> {
    let named: Vec<&str> = hosts(request)?.collect();
    for host in &named {
        if !host_is_known(settings, is_kept, host) {
            return Err(Failed::new(
                StatusCode::FORBIDDEN,
                format!(
                    "requests for the host `{host}` are refused, since a page of another site could have sent them: start the \
                     daemon with LODE_ALLOWED_HOSTS={}, or call it by its address",
                    name_of(host)
                ),
            ));
        }
    }
    for origin in request.headers().get_all(header::ORIGIN) {
        let origin = text(origin);
        let is_ours = is_own_page(settings, is_kept, &named, origin);
        if !is_ours && !origin_is_known(&settings.origins, origin) {
            return Err(Failed::new(
                StatusCode::FORBIDDEN,
                format!("requests from pages of `{origin}` are refused; add the origin to LODE_ORIGINS to allow them"),
            ));
        }
    }
    Ok(())
}

/// Returns the hosts that a request names: in its header, in its request line, or both.
fn hosts(request: &Request) -> Result<impl Iterator<Item = &str>, Failed> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let (first, second) = (named.next(), named.next());
    if second.is_some() {
        return Err(Failed::bad_request("there is more than one `Host` header"));
    }
    let authority = request.uri().authority().map(Authority::as_str);
    Ok(first.map(text).into_iter().chain(authority))
}

/// Builds the CORS layer, which answers preflight requests and states which pages may read
/// responses.
pub(crate) fn cors(settings: &Settings) -> CorsLayer {
    let origins = settings.origins.clone();
    let known =
        move |origin: &HeaderValue, _: &Parts| origin.to_str().is_ok_and(|origin| origin_is_known(&origins, origin));
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(known))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("lode-job"),
            HeaderName::from_static("x-lode-ignored"),
            HeaderName::from_static("x-lode-model-digest"),
            HeaderName::from_static("docker-content-digest"),
        ])
        .max_age(PREFLIGHT_AGE)
}

fn text(value: &HeaderValue) -> &str {
    // A value that is not text never equals a known name.
    value.to_str().unwrap_or("?")
}

fn host_is_known(settings: &Settings, is_kept: bool, host: &str) -> bool {
    let name = name_of(host);
    if is_this_machine(name) || settings.allowed_hosts.iter().any(|known| matches(known, name)) {
        return true;
    }
    // A page under a name that resolves to this machine has neither a certificate for that name nor
    // a key.
    let serves_others = !settings.address.ip().is_loopback();
    serves_others && (settings.tls.is_some() || is_kept || is_of_a_local_network(name))
}

/// Whether pages of an origin may call the daemon: pages of this machine, of local programs, and of
/// listed origins.
fn origin_is_known(listed: &[String], origin: &str) -> bool {
    let of_this_machine = match origin.split_once("://") {
        Some(("http" | "https", host)) => is_this_machine(name_of(host)),
        Some((scheme, _)) => PROGRAMS.contains(&scheme),
        None => false,
    };
    of_this_machine || listed.iter().any(|known| matches(known, origin))
}

/// Whether an origin is the page that this daemon serves. An equal host is no proof if other
/// parties can make the name resolve to this machine. It must be an address or an exactly listed
/// name, or TLS or a key must protect the daemon.
fn is_own_page(settings: &Settings, is_kept: bool, named: &[&str], origin: &str) -> bool {
    let Some((scheme, host)) = origin.split_once("://") else { return false };
    // A proxy may terminate TLS for a daemon without TLS.
    let is_spoken = scheme == "https" || (scheme == "http" && settings.tls.is_none());
    let name = name_of(host);
    let is_listed = settings.allowed_hosts.iter().any(|known| !known.contains('*') && matches(known, name));
    let is_sure = is_listed || is_kept || settings.tls.is_some() || name.parse::<IpAddr>().is_ok();
    is_spoken && is_sure && named.contains(&host)
}

/// Returns the host without its port.
fn name_of(host: &str) -> &str {
    let name = host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or_else(
        || host.rsplit_once(':').filter(|(name, _)| !name.contains(':')).map_or(host, |(name, _)| name),
        |(address, _)| address,
    );
    name.trim_end_matches('.')
}

fn is_this_machine(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || CONTAINERS.iter().any(|host| name.eq_ignore_ascii_case(host))
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

/// Whether a name is an address, has no dot, or is in a domain that no public name server resolves.
fn is_of_a_local_network(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let local = [".local", ".internal", ".lan", ".home.arpa"];
    let is_single = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    name.parse::<IpAddr>().is_ok() || is_single || local.iter().any(|end| name.ends_with(end))
}

/// Whether a text matches a pattern, in which `*` matches any text.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_ascii_lowercase(), text.to_ascii_lowercase());
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = pattern.rsplit_once('*').map(|(_, last)| last) else { return rest.is_empty() };
    let middle: Vec<&str> = parts.collect();
    for part in &middle[..middle.len() - 1] {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_this_machine_from_others() {
        for local in [
            "localhost",
            "localhost:11434",
            "127.0.0.1:1",
            "[::1]:1",
            "::1",
            "a.localhost",
            "localhost.",
            "host.docker.internal:11434",
        ] {
            assert!(is_this_machine(name_of(local)), "{local}");
        }
        for foreign in ["example.com", "example.com:11434", "?", "", "localhost.example.com", "10.0.0.1"] {
            assert!(!is_this_machine(name_of(foreign)), "{foreign}");
        }
        for near in ["10.0.0.1", "[fd00::1]:1", "box", "box.local:80", "ollama.internal"] {
            assert!(is_of_a_local_network(name_of(near)), "{near}");
        }
        for far in ["example.com", "local.example.com", "", "?", "a_b"] {
            assert!(!is_of_a_local_network(name_of(far)), "{far}");
        }
    }

    #[test]
    fn knows_origins() {
        let listed = ["https://*.example.com".to_owned(), "http://box:3000".to_owned()];
        for known in [
            "http://localhost:3000",
            "https://127.0.0.1",
            "app://x",
            "tauri://localhost",
            "vscode-webview://12",
            "https://a.example.com",
            "http://box:3000",
        ] {
            assert!(origin_is_known(&listed, known), "{known}");
        }
        for foreign in [
            "http://example.com",
            "https://a.example.com.evil.net",
            "https://example.com",
            "http://box:3001",
            "null",
            "",
            "http://127.0.0.1.example.com",
            "evil://x",
            "chrome-extension://abcdefgh",
            "moz-extension://12",
            "APP://x",
        ] {
            assert!(!origin_is_known(&listed, foreign), "{foreign}");
        }
        assert!(origin_is_known(&["*".to_owned()], "null"));
    }

    #[test]
    fn patterns() {
        for (pattern, text, fits) in [
            ("a*c*e", "abcde", true),
            ("a*c*e", "ace", true),
            ("a*c*e", "abde", false),
            ("*", "", true),
            ("a", "ab", false),
            ("ab*b", "ab", false),
            ("A*", "abc", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
