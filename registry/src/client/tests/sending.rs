//! Tests of redirects, retries, limits and bodies.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::header::{CONTENT_RANGE, HeaderMap};
use reqwest::{Method, StatusCode};
use tokio::net::TcpListener;

use super::fake::{Fake, answer, get, host, host_with, impatient, install_provider, pull, request};
use crate::client::limits::HostLimits;
use crate::client::{Chain, Error, Host, HostSettings, MakeStream, Payload, Request};

#[tokio::test]
async fn leaves_a_circle_of_redirects() {
    let registry = Fake::serve(|_, _| answer(307, &[("location", "/v2/again")], "")).await;
    let result = get(&host(&registry.address, None), "/v2/").await;
    assert!(matches!(result, Err(Error::Redirects { .. })), "{result:?}");
    assert_eq!(registry.seen().len(), 6);
}

#[tokio::test]
async fn goes_to_no_odd_places() {
    for place in ["", "ftp://127.0.0.1/", "file:///etc/passwd", "http://", "https://[", "javascript:1"] {
        let name = if place.is_empty() { "no-location" } else { "location" };
        let registry = Fake::serve(move |_, _| answer(302, &[(name, place)], "")).await;
        let result = get(&host(&registry.address, None), "/v2/").await;
        assert!(matches!(result, Err(Error::Redirects { .. })), "{place}: {result:?}");
    }
    install_provider();
    let secure = Host::new("registry.example", HostSettings::default(), Arc::new(Chain::default())).expect("a host");
    let plain = "http://registry.example/v2/".parse().expect("a URL");
    let result = secure.send(request(Method::GET, plain, pull(), Payload::None)).await;
    assert!(matches!(result, Err(Error::Redirects { .. })), "{result:?}");
}

#[tokio::test]
async fn repeats_bodies_only_where_a_redirect_says_so() {
    let registry = Fake::serve(|request, _| match request.path.as_str() {
        "/v2/307" => answer(307, &[("location", "/v2/there")], ""),
        "/v2/302" => answer(302, &[("location", "/v2/there")], ""),
        _ => answer(201, &[], ""),
    })
    .await;
    let host = host(&registry.address, None);
    let put = async |path: &str| {
        let payload = Payload::Bytes(Bytes::from_static(b"content"));
        host.send(request(Method::PUT, host.url(path), pull(), payload)).await.expect("an answer").status()
    };
    assert_eq!(put("/v2/307").await, 201);
    assert_eq!(put("/v2/302").await, 302);
    let seen = registry.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!((seen[1].path.as_str(), &seen[1].body[..]), ("/v2/there", &b"content"[..]));
}

#[tokio::test]
async fn tries_again_what_is_not_now() {
    for (status, refusals) in [(429, 1), (503, 2), (502, 1), (504, 4), (408, 1)] {
        let registry = Fake::serve(move |_, before| {
            if before < refusals { answer(status, &[("retry-after", "0")], "") } else { answer(200, &[], "") }
        })
        .await;
        assert_eq!(get(&host(&registry.address, None), "/v2/").await.expect("in the end").status(), 200);
        assert_eq!(registry.seen().len(), refusals + 1);
    }
}

#[tokio::test]
async fn tries_five_times_at_most() {
    let busy = Fake::serve(|_, _| answer(429, &[], "")).await;
    let result = get(&host(&busy.address, None), "/v2/").await;
    assert!(matches!(result, Err(Error::TooManyRequests { .. })), "{result:?}");
    assert_eq!(busy.seen().len(), 5);
    let broken = Fake::serve(|_, _| answer(503, &[], "out of order")).await;
    let error = get(&host(&broken.address, None), "/v2/").await.expect_err("it never works");
    assert!(error.is_transient() && error.to_string().contains("out of order"), "{error}");
    let failing = Fake::serve(|_, _| answer(500, &[], "")).await;
    assert!(get(&host(&failing.address, None), "/v2/").await.is_err_and(|error| error.to_string().contains("500")));
    assert_eq!(failing.seen().len(), 5);
    let refusing = Fake::serve(|_, _| answer(501, &[], "")).await;
    assert_eq!(get(&host(&refusing.address, None), "/v2/").await.expect("an answer").status(), 501);
    assert_eq!(refusing.seen().len(), 1);
}

#[tokio::test]
async fn appends_nothing_twice() {
    let registry = Fake::serve(|_, _| answer(503, &[], "")).await;
    let host = host(&registry.address, None);
    let chunk = |range: Option<&str>| {
        let mut headers = HeaderMap::new();
        headers.extend(range.map(|range| (CONTENT_RANGE, range.parse().expect("a range"))));
        let payload = Payload::Bytes(Bytes::from_static(b"12345"));
        Request { method: Method::PATCH, url: host.url("/v2/a/b/blobs/uploads/1"), headers, scope: pull(), payload }
    };
    for (range, requests) in [(None, 1), (Some("0-4"), 2)] {
        assert!(host.send(chunk(range)).await.is_err());
        assert_eq!(registry.seen().len(), requests, "nobody knows whether the chunk was taken, or how much of it");
    }
}

#[tokio::test]
async fn cannot_reach_what_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    let error = get(&host(&address, None), "/v2/").await.expect_err("connection refused");
    assert!(error.is_transient(), "{error}");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn does_not_repeat_what_tls_refuses() {
    let registry = Fake::serve(|_, _| answer(200, &[], "")).await;
    install_provider();
    let secure = Host::new(&registry.address, HostSettings::default(), Arc::new(Chain::default())).expect("a host");
    let error = get(&secure, "/v2/").await.expect_err("it speaks no TLS");
    assert!(!error.is_transient() && error.to_string().contains("plain HTTP"), "{error}");
}

/// Limits that detect a stall quickly.
fn nervous() -> HostLimits {
    HostLimits { stall: Duration::from_millis(250), attempts: 1, ..impatient() }
}

#[tokio::test]
async fn notices_a_body_that_stalls() {
    let registry = Fake::serve(|_, _| {
        let first = futures_util::stream::iter([Ok::<_, io::Error>(Bytes::from_static(b"the beginning"))]);
        answer(200, &[], Body::from_stream(first.chain(futures_util::stream::pending())))
    })
    .await;
    let host = host_with(&registry.address, None, nervous());
    let mut response = get(&host, "/v2/").await.expect("a head");
    assert_eq!(host.next_piece(&mut response).await.expect("a piece").expect("not the end"), "the beginning");
    let result = host.next_piece(&mut response).await;
    assert!(matches!(&result, Err(error @ Error::Stalled { .. }) if error.is_transient()), "{result:?}");
}

#[tokio::test]
async fn notices_a_registry_that_does_not_answer() {
    // The system accepts the connections; no task reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let short = HostLimits { head: Duration::from_millis(100), ..nervous() };
    let host = host_with(&silent.local_addr().expect("it is bound").to_string(), None, short);
    let result = get(&host, "/v2/").await;
    assert!(matches!(result, Err(Error::Stalled { .. })), "{result:?}");
    let endless = || futures_util::stream::repeat_with(|| Ok(Bytes::from_static(&[0; 16_384]))).boxed();
    let payload = Payload::Stream { length: 1 << 40, make: Arc::new(endless) };
    let patient = host_with(host.name(), None, HostLimits { head: Duration::from_hours(1), ..nervous() });
    let result = patient.send(request(Method::PATCH, patient.url("/v2/"), pull(), payload)).await;
    assert!(matches!(result, Err(Error::Stalled { .. })), "{result:?}");
}

#[tokio::test]
async fn is_not_hurried_by_a_slow_source() {
    let registry = Fake::serve(|_, _| answer(201, &[], "")).await;
    let slow = || {
        let piece = |size: usize| async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            Ok(Bytes::from(vec![7; size]))
        };
        futures_util::stream::iter([1000, 24]).then(piece).boxed()
    };
    let payload = Payload::Stream { length: 1024, make: Arc::new(slow) };
    let host = host_with(&registry.address, None, nervous());
    let sent = request(Method::PUT, host.url("/v2/"), pull(), payload);
    assert_eq!(host.send(sent).await.expect("it waits for us").status(), 201);
}

#[tokio::test]
async fn makes_a_stream_again_for_every_attempt() {
    let registry = Fake::serve(|_, before| answer(if before == 0 { 429 } else { 201 }, &[], "")).await;
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let make = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let pieces = [&b"hello "[..], &b"world"[..]].map(|piece| Ok(Bytes::from_static(piece)));
        futures_util::stream::iter(pieces).boxed()
    };
    let host = host(&registry.address, None);
    let payload = Payload::Stream { length: 11, make: Arc::new(make) };
    let sent = request(Method::PUT, host.url("/v2/x?digest=sha256:1"), pull(), payload);
    assert_eq!(host.send(sent).await.expect("taken").status(), 201);
    assert_eq!(made.load(Ordering::SeqCst), 2);
    let second = registry.seen().remove(1);
    assert_eq!((&second.body[..], second.header("content-length")), (&b"hello world"[..], "11"));
    assert_eq!((second.header("transfer-encoding"), second.query.as_str()), ("", "digest=sha256:1"));
}

#[tokio::test]
async fn tells_of_a_source_that_breaks() {
    let registry = Fake::serve(|_, _| answer(201, &[], "")).await;
    let host = host(&registry.address, None);
    let broken = || {
        let pieces = [Ok(Bytes::from_static(b"123")), Err(io::Error::other("the disk is on fire"))];
        futures_util::stream::iter(pieces).boxed()
    };
    let short = || futures_util::stream::iter([Ok(Bytes::from_static(b"123"))]).boxed();
    let long = || futures_util::stream::iter([Ok(Bytes::from_static(&[0; 100]))]).boxed();
    let makes: [(Arc<MakeStream>, &str); 3] =
        [(Arc::new(broken), "on fire"), (Arc::new(short), "7 bytes too early"), (Arc::new(long), "longer")];
    for (make, expect) in makes {
        let payload = Payload::Stream { length: 10, make };
        let error = host.send(request(Method::PUT, host.url("/v2/x"), pull(), payload)).await.expect_err(expect);
        assert!(matches!(error, Error::Payload { .. }) && error.to_string().contains(expect), "{error}");
    }
}

#[tokio::test]
async fn sends_bodies_of_all_lengths() {
    let registry = Fake::serve(|_, _| answer(201, &[], "")).await;
    let host = host(&registry.address, None);
    for length in [0, 1, 65_536, 65_537, 1_000_000] {
        let body: Bytes = (0..=250).cycle().take(length).collect();
        let sent = request(Method::POST, host.url("/v2/x"), pull(), Payload::Bytes(body.clone()));
        host.send(sent).await.expect("taken");
        let seen = registry.seen().pop().expect("it arrived");
        assert!(seen.body == body, "{length} bytes arrived as {}", seen.body.len());
        assert_eq!(seen.header("content-length"), length.to_string());
    }
    host.send(request(Method::POST, host.url("/v2/x"), pull(), Payload::None)).await.expect("taken");
    assert_eq!(registry.seen().pop().expect("it arrived").header("content-length"), "0");
}

#[tokio::test]
async fn reads_no_more_than_asked() {
    let registry = Fake::serve(|request, _| {
        if request.path == "/v2/known" {
            return answer(200, &[], vec![b'x'; 1001]);
        }
        let piece = || Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 600]));
        answer(200, &[], Body::from_stream(futures_util::stream::repeat_with(piece)))
    })
    .await;
    let host = host(&registry.address, None);
    for path in ["/v2/known", "/v2/endless"] {
        let response = get(&host, path).await.expect("a head");
        let result = host.body(response, 1000).await;
        assert!(matches!(result, Err(Error::TooLarge { limit: 1000, .. })), "{path}: {result:?}");
    }
    let response = get(&host, "/v2/known").await.expect("a head");
    assert_eq!(host.body(response, 1001).await.expect("it fits").len(), 1001);
    let response = get(&host, "/v2/endless").await.expect("a head");
    let Error::Refused { message, status, .. } = host.refusal("blob `x`", response).await else {
        panic!("200 is a strange refusal, and nothing else")
    };
    assert_eq!((message.len(), status), (300, StatusCode::OK));
}

#[tokio::test]
async fn makes_refusals_readable() {
    let body = r#"{"errors":[{"code":"DENIED","message":"not\u001b[2J yours"}]}"#;
    let registry = Fake::serve(move |request, _| {
        answer(request.path.rsplit('/').next().and_then(|s| s.parse().ok()).unwrap_or(200), &[], body)
    })
    .await;
    let host = host(&registry.address, None);
    for (status, expect) in [
        (403, "denies access to blob `x`: DENIED: not [2J yours"),
        (404, "blob `x` at `"),
        (405, "answered 405 Method Not Allowed to blob `x`: DENIED"),
    ] {
        let response = get(&host, &format!("/v2/{status}")).await.expect("an answer");
        let text = host.refusal("blob `x`", response).await.to_string();
        assert!(text.contains(expect) && !text.contains('\u{1b}'), "{text}");
    }
}

#[tokio::test]
async fn tells_a_mirror_what_is_meant() {
    let registry = Fake::serve(|_, _| answer(200, &[], "")).await;
    install_provider();
    let mirror = |base: &str, of: &str| Host::mirror(base, of, HostSettings::default(), Arc::new(Chain::default()));
    let host = mirror(&registry.url("/cache/v2/"), "docker.io").expect("a mirror");
    get(&host, "/v2/a/b/tags/list?n=5").await.expect("an answer");
    let seen = registry.seen().remove(0);
    assert_eq!((seen.path.as_str(), seen.query.as_str()), ("/cache/v2/a/b/tags/list", "n=5&ns=docker.io"));
    let itself = mirror(&registry.url(""), &registry.address).expect("a mirror");
    assert_eq!(itself.url("/v2/").as_str(), registry.url("/v2/"));
    for wrong in ["", "mirror", "ftp://mirror", "https://me:secret@mirror", "https://mirror?x=1"] {
        let error = mirror(wrong, "docker.io").expect_err(wrong).to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn refuses_settings_that_cannot_work() {
    install_provider();
    let new = |host: &str, settings| Host::new(host, settings, Arc::new(Chain::default()));
    for wrong in ["", "a b", "a/b", "me:secret@a", "a?x", "a#x", "https://a", "a:99999"] {
        let error = new(wrong, HostSettings::default()).expect_err(wrong).to_string();
        assert!(!error.contains("secret"), "{error}");
    }
    let still = HostSettings { bytes_per_second: Some(0), ..HostSettings::default() };
    assert!(matches!(new("a", still), Err(Error::Settings(_))));
    let missing = HostSettings { ca_file: Some("/does/not/exist.pem".into()), ..HostSettings::default() };
    assert!(matches!(new("a", missing), Err(Error::File { .. })));
    let hub = new("docker.io", HostSettings::for_host("docker.io")).expect("a host");
    assert_eq!((hub.name(), hub.url("/v2/").as_str()), ("docker.io", "https://registry-1.docker.io/v2/"));
}
