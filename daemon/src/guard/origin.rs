//! Which hosts and origins a request may name.
//!
//! A web page can make its visitor's browser send requests to this daemon. Two things give it away: the `Host` it was
//! made to believe in (DNS rebinding), and the `Origin` that browsers add to what pages send. Programs send no origin.
//!
//! A daemon that serves this machine only accepts the names of this machine. One that serves others accepts addresses
//! and the names of local networks too, and any name where TLS or an API key already keeps strange pages out. Other names,
//! and the origins of pages that may call the daemon, are set by `LODE_ALLOWED_HOSTS` and `LODE_ORIGINS`.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::Failed;
use crate::settings::Settings;

/// How long a browser may remember what it was allowed.
const PREFLIGHT_AGE: Duration = Duration::from_hours(12);

/// Schemes of pages that programs of this machine bring along, which no web site can claim. Those of a browser's extensions are not
/// among them: who installs one does not say that it may remove models.
const PROGRAMS: [&str; 5] = ["app", "file", "tauri", "vscode-webview", "vscode-file"];

/// What containers call the machine that runs them. `.internal` is reserved: no public name server answers for it.
const CONTAINERS: [&str; 3] = ["host.docker.internal", "gateway.docker.internal", "host.containers.internal"];

/// Refuses requests that name a host or an origin that is not ours. `is_kept` says that what is asked for is given to nobody
/// without a key or a password.
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
                format!("requests from pages of `{origin}` are refused; LODE_ORIGINS takes more origins"),
            ));
        }
    }
    Ok(())
}

/// The host that a request names, in its header, in its line, or in both.
fn hosts(request: &Request) -> Result<impl Iterator<Item = &str>, Failed> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let (first, second) = (named.next(), named.next());
    if second.is_some() {
        return Err(Failed::bad_request("there is more than one `Host` header"));
    }
    let authority = request.uri().authority().map(Authority::as_str);
    Ok(first.map(text).into_iter().chain(authority))
}

/// Tells browsers which pages may read the answers, and answers their questions beforehand.
pub(crate) fn cors(settings: &Settings) -> CorsLayer {
    let origins = settings.origins.clone();
    let known =
        move |origin: &HeaderValue, _: &Parts| origin.to_str().is_ok_and(|origin| origin_is_known(&origins, origin));
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(known))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("x-lode-ignored"),
            HeaderName::from_static("x-lode-model-digest"),
            HeaderName::from_static("docker-content-digest"),
        ])
        .max_age(PREFLIGHT_AGE)
}

fn text(value: &HeaderValue) -> &str {
    // What is not text is certainly nobody's name.
    value.to_str().unwrap_or("?")
}

fn host_is_known(settings: &Settings, is_kept: bool, host: &str) -> bool {
    let name = name_of(host);
    if is_this_machine(name) || settings.allowed_hosts.iter().any(|known| matches(known, name)) {
        return true;
    }
    // A page whose name leads here has no certificate for it, and no key.
    let serves_others = !settings.address.ip().is_loopback();
    serves_others && (settings.tls.is_some() || is_kept || is_of_a_local_network(name))
}

/// Whether pages of an origin may call the daemon: those of this machine, those of local programs, and those listed.
fn origin_is_known(listed: &[String], origin: &str) -> bool {
    let of_this_machine = match origin.split_once("://") {
        Some(("http" | "https", host)) => is_this_machine(name_of(host)),
        Some((scheme, _)) => PROGRAMS.contains(&scheme),
        None => false,
    };
    of_this_machine || listed.iter().any(|known| matches(known, origin))
}

/// Whether an origin is that of the page which this daemon serves. That it has the host of the request proves nothing for a name that others
/// can make lead here: it must be an address, a name that was listed as it is, or one that takes a certificate or a key.
fn is_own_page(settings: &Settings, is_kept: bool, named: &[&str], origin: &str) -> bool {
    let Some((scheme, host)) = origin.split_once("://") else { return false };
    // A proxy may speak TLS for a daemon that does not.
    let is_spoken = scheme == "https" || (scheme == "http" && settings.tls.is_none());
    let name = name_of(host);
    let is_listed = settings.allowed_hosts.iter().any(|known| !known.contains('*') && matches(known, name));
    let is_sure = is_listed || is_kept || settings.tls.is_some() || name.parse::<IpAddr>().is_ok();
    is_spoken && is_sure && named.contains(&host)
}

/// The host without a port.
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

/// Addresses, names without a dot, and names that no public server answers for.
fn is_of_a_local_network(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let local = [".local", ".internal", ".lan", ".home.arpa"];
    let is_single = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    name.parse::<IpAddr>().is_ok() || is_single || local.iter().any(|end| name.ends_with(end))
}

/// Whether a text is what a pattern says, in which `*` stands for anything.
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
