//! The rules of a provider, for a repository at a registry.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use content::operation::{Classified, ErrorClass, RemoteClass};
use content::testsuite::{RANGES, provides};
use content::{Descriptor, Digest, Provider};

use super::fake::{Fake, Seen, answer, host, install_provider};
use crate::client::Remote;

/// Answers like a registry whose repository has the blob of the test suite.
fn registry(request: &Seen) -> Response {
    if request.path != format!("/v2/team/m/blobs/{}", Digest::of(RANGES)) {
        return answer(404, &[], r#"{"errors":[{"code":"BLOB_UNKNOWN"}]}"#);
    }
    let size = RANGES.len();
    let range = request.headers.get("range").map(|value| value.to_str().expect("tests send ASCII"));
    let Some((first, last)) = range.and_then(|text| text.strip_prefix("bytes=")?.split_once('-')) else {
        return answer(200, &[("content-length", &size.to_string())], RANGES);
    };
    let (first, last): (usize, usize) = (first.parse().expect("a number"), last.parse().expect("a number"));
    answer(206, &[("content-range", &format!("bytes {first}-{last}/{size}"))], &RANGES[first..=last])
}

#[tokio::test]
async fn a_repository_follows_the_rules_of_a_provider() {
    install_provider();
    let fake = Fake::serve(|request, _| registry(request)).await;
    provides(&Remote::new(vec![host(&fake.address, None)], "team/m")).await;
}

#[tokio::test]
async fn the_next_source_is_read_where_the_first_fails() {
    install_provider();
    let (broken, good) =
        (Fake::serve(|_, _| answer(403, &[], "")).await, Fake::serve(|request, _| registry(request)).await);
    let sources = vec![host(&broken.address, None), host(&good.address, None)];
    provides(&Remote::new(sources, "team/m")).await;
    assert!(!broken.seen().is_empty());
}

/// A caller must be able to distinguish a refusal from a missing blob.
#[tokio::test]
async fn a_refusal_is_no_missing_blob() {
    install_provider();
    let fake = Fake::serve(|_, _| answer(403, &[], "")).await;
    let remote = Remote::new(vec![host(&fake.address, None)], "team/m");
    let blob = Descriptor::blob(Digest::of(RANGES), RANGES.len() as u64);
    for error in [
        remote.stat(&blob.digest).await.expect_err("it refuses"),
        remote.read(&blob, 0..1).await.expect_err("it refuses"),
    ] {
        assert_eq!(error.class(), ErrorClass::Remote(RemoteClass::NoAccess), "{error:?}");
    }
    assert_eq!(fake.seen().iter().map(|seen| seen.method.as_str()).collect::<Vec<_>>(), ["HEAD", "GET"]);
}

/// The length is the reader's limit, so a response to `HEAD` without it is not a description.
#[tokio::test]
async fn a_description_needs_a_length() {
    install_provider();
    let fake = Fake::serve(|_, _| {
        let body = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        answer(200, &[], body)
    })
    .await;
    let remote = Remote::new(vec![host(&fake.address, None)], "team/m");
    let error = remote.stat(&Digest::of(RANGES)).await.expect_err("no length").to_string();
    assert!(error.contains("does not announce the length"), "{error}");
}
