//! Tests with a local server that redirects, expires URLs, sends wrong ranges and truncates bodies.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response as Answer};
use axum::routing::get;
use tokio::net::TcpListener;

use super::*;

const CONTENT: &[u8] = b"0123456789abcdef";

/// The requests that a server received.
#[derive(Default)]
struct Seen {
    requests: AtomicUsize,
    /// The `Authorization` header of each request to `/signed`.
    signed: Mutex<Vec<Option<HeaderValue>>>,
    /// The redirect target of `/hub`.
    elsewhere: Mutex<String>,
}

/// Serves a range correctly.
fn ranged(headers: &HeaderMap) -> Answer {
    let asked = headers.get(RANGE).and_then(|value| value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let Some((first, last)) = asked else { return CONTENT.into_response() };
    let (first, last): (usize, usize) = (first.parse().expect("a number"), last.parse().expect("a number"));
    let range = format!("bytes {first}-{last}/{}", CONTENT.len());
    (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, range)], CONTENT[first..=last].to_vec()).into_response()
}

fn lying(range: &'static str) -> Answer {
    (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, range)], CONTENT[2..5].to_vec()).into_response()
}

async fn serve(State(seen): State<Arc<Seen>>, Path(path): Path<String>, headers: HeaderMap) -> Answer {
    let number = seen.requests.fetch_add(1, Ordering::Relaxed);
    let redirect = |to: String| (StatusCode::FOUND, [(LOCATION, to)]).into_response();
    match path.as_str() {
        "hub" => redirect(seen.elsewhere.lock().expect("nobody panicked").clone()),
        "signed" => {
            let mut signed = seen.signed.lock().expect("nobody panicked");
            signed.push(headers.get(AUTHORIZATION).cloned());
            // For the second request the signature has expired.
            if signed.len() == 2 { StatusCode::FORBIDDEN.into_response() } else { ranged(&headers) }
        }
        "private" => match headers.get(AUTHORIZATION) {
            Some(value) if value == "Bearer secret" => ranged(&headers),
            _ => StatusCode::UNAUTHORIZED.into_response(),
        },
        "loop" => redirect("/loop".to_owned()),
        "file" => redirect("file:///etc/passwd".to_owned()),
        "ignores" => CONTENT.into_response(),
        "shifted" => lying("bytes 1-3/16"),
        "longer" => lying("bytes 2-4/17"),
        "unknown" => lying("bytes 2-4/*"),
        "more" => (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, "bytes 2-4/16")], CONTENT.to_vec()).into_response(),
        "less" => {
            (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, "bytes 2-4/16")], CONTENT[2..3].to_vec()).into_response()
        }
        "shaky" if number < 2 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        "plain" | "shaky" => ranged(&headers),
        "down" => StatusCode::BAD_GATEWAY.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn server() -> (Arc<Seen>, String) {
    let seen = Arc::new(Seen::default());
    let router = Router::new().route("/{*path}", get(serve)).with_state(Arc::clone(&seen));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (seen, address)
}

fn endpoint(address: &str, token: Option<&str>) -> Endpoint {
    // The program does this when it starts.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Endpoint::new(address, token.map(str::to_owned)).expect("an endpoint").impatient()
}

async fn fetch(endpoint: &Endpoint, url: &str) -> io::Result<Bytes> {
    (endpoint.file(url, CONTENT.len() as u64, None).expect("a file").fetch)(2..5).await
}

#[tokio::test]
async fn reads_ranges_and_documents() {
    let (seen, address) = server().await;
    let endpoint = endpoint(&address, None);
    assert_eq!(fetch(&endpoint, &format!("{address}/plain")).await.expect("fetches"), &b"234"[..]);
    assert_eq!(endpoint.size(&format!("{address}/plain")).await.expect("a size"), 16);
    assert_eq!(endpoint.document(&format!("{address}/plain"), 16).await.expect("all"), CONTENT);
    assert!(endpoint.document(&format!("{address}/plain"), 15).await.is_err(), "more than the limit was taken");
    assert_eq!(seen.requests.load(Ordering::Relaxed), 4);
    let whole = endpoint.file(&format!("{address}/ignores"), 16, None).expect("a file");
    assert_eq!((whole.fetch)(0..16).await.expect("the whole file is a range too"), CONTENT);
}

#[tokio::test]
async fn follows_redirects_without_the_token_and_anew_when_they_expire() {
    let (hub, address) = server().await;
    let (other, elsewhere) = server().await;
    *hub.elsewhere.lock().expect("nobody panicked") = format!("{elsewhere}/signed?signature=x");
    let endpoint = endpoint(&address, Some("secret"));
    let file = endpoint.file(&format!("{address}/hub"), 16, None).expect("a file");
    for _ in 0..3 {
        assert_eq!((file.fetch)(2..5).await.expect("fetches"), &b"234"[..]);
    }
    // One request at first, and one after the expiry.
    assert_eq!(hub.requests.load(Ordering::Relaxed), 2);
    assert_eq!(*other.signed.lock().expect("nobody panicked"), [const { None }; 4]);
    assert_eq!(fetch(&endpoint, &format!("{address}/private")).await.expect("it has the token"), &b"234"[..]);
}

/// A URL that a request names is fetched from the Internet, or from a host that the settings allow,
/// and so are the targets of redirects.
#[tokio::test]
async fn named_urls_lead_to_allowed_hosts_only() {
    let (seen, address) = server().await;
    endpoint(&address, None);
    let allowed = ["127.0.0.1".to_owned()];
    let picture = |path: &str, most: u64, allowed: &[String]| {
        let (url, allowed) = (format!("{address}/{path}"), allowed.to_vec());
        async move { crate::fetch_picture(&url, most, &allowed).await.map_err(|error| error.with_causes()) }
    };
    assert_eq!(picture("plain", 16, &allowed).await.expect("it is fetched"), CONTENT);
    let error = picture("plain", 15, &allowed).await.expect_err("it is too long");
    assert!(error.contains("15"), "{error}");
    let before = seen.requests.load(Ordering::Relaxed);
    let error = picture("plain", 16, &[]).await.expect_err("it is on this machine");
    assert!(error.contains("is not https"), "{error}");
    let secure = address.replacen("http:", "https:", 1);
    let error = crate::fetch_picture(&format!("{secure}/plain"), 16, &[]).await.expect_err("it is on this machine");
    assert!(error.to_string().contains("cannot be fetched"), "{error}");
    assert!(error.with_causes().contains("on this machine"), "{error}");
    assert_eq!(seen.requests.load(Ordering::Relaxed), before, "a request was sent");
    let port = address.rsplit_once(':').expect("a port").1;
    *seen.elsewhere.lock().expect("nobody panicked") = format!("http://localhost:{port}/plain");
    let error = picture("hub", 16, &allowed).await.expect_err("it leads to another host");
    assert!(error.contains("`localhost` is on this machine"), "{error}");
}

#[tokio::test]
async fn refuses_answers_to_other_questions() {
    let (seen, address) = server().await;
    let endpoint = endpoint(&address, None);
    for (path, says) in [
        ("ignores", "must serve ranges"),
        ("shifted", "expected the range `bytes 2-4/16`, got `bytes 1-3/16`"),
        ("longer", "got `bytes 2-4/17`"),
        ("unknown", "got `bytes 2-4/*`"),
        ("more", "more than 3 bytes came"),
        ("loop", "more than 5 redirects"),
        ("file", "the target has the scheme `file`"),
        ("private", "HF_TOKEN"),
        ("missing", "404"),
    ] {
        let error = fetch(&endpoint, &format!("{address}/{path}")).await.expect_err(path).to_string();
        assert!(error.contains(says), "{path}: `{error}` should say `{says}`");
    }
    let before = seen.requests.load(Ordering::Relaxed);
    let error = fetch(&endpoint, &format!("{address}/less")).await.expect_err("less").to_string();
    assert!(error.contains("tried 5 times") && error.contains("was truncated"), "{error}");
    assert_eq!(seen.requests.load(Ordering::Relaxed) - before, 5);
}

#[tokio::test]
async fn tries_again_what_may_pass() {
    let (seen, address) = server().await;
    let endpoint = endpoint(&address, None);
    assert_eq!(fetch(&endpoint, &format!("{address}/shaky")).await.expect("the third time"), &b"234"[..]);
    assert_eq!(seen.requests.load(Ordering::Relaxed), 3);
    let error = fetch(&endpoint, &format!("{address}/down")).await.expect_err("down").to_string();
    assert!(error.contains("tried 5 times") && error.contains("502"), "{error}");
}

#[test]
fn a_token_needs_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let token = || Some("secret".to_owned());
    assert!(Endpoint::new("http://hub.example", token()).is_err());
    assert!(Endpoint::new("http://hub.example", None).is_ok());
    let endpoint = Endpoint::new("https://hub.example", token()).expect("fine");
    assert!(!format!("{endpoint:?}").contains("secret"));
    for bad in ["hub.example", "file:///x", "https://"] {
        assert!(Endpoint::new(bad, None).is_err(), "{bad}");
    }
}
