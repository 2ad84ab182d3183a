//! Blobs with wrong content, and blobs that do not arrive.

use std::sync::Arc;

use axum::body::Bytes;

use super::door::Door;
use super::registry::{Behaviour, Content, Registry};
use super::{Case, Expect, check_all};
use crate::peers::password;
use crate::server::Server;

/// Returns a case about the largest blob: responses to the first requests, and to all later ones.
fn case(name: &'static str, digest: &str, script: (&[Behaviour], Behaviour), expect: Expect) -> Case {
    let (digest, first, then) = (digest.to_owned(), script.0.to_vec(), script.1);
    Case::new(name, expect, move |registry: &Registry| registry.script(&digest, &first, then.clone()))
}

#[tokio::test]
async fn wrong_bytes() {
    use Behaviour::{CompressionLie, Empty, Endless, Healthy, Instead, NoLength, WrongBytes};
    let content = Arc::new(Content::tiny().await);
    let blob = content.largest();
    let short = &blob["sha256:".len()..][..12];
    let fails = || Expect::fails(&[short]);
    let page = Instead(Bytes::from_static(b"<html><body>Welcome to our network</body></html>"));
    let cases = vec![
        case("wrong once", &blob, (&[WrongBytes], Healthy), Expect::Works),
        case("wrong for ever", &blob, (&[], WrongBytes), fails()),
        case("endless", &blob, (&[], Endless), fails()),
        case("empty", &blob, (&[], Empty), fails()),
        case("a page in its place", &blob, (&[], page), fails()),
        case("no length", &blob, (&[], NoLength), Expect::Works),
        case("said to be compressed", &blob, (&[], CompressionLie), Expect::Either),
    ];
    check_all(content, cases).await;
}

#[tokio::test]
async fn broken_off() {
    use Behaviour::{Healthy, NoRanges, Short, Stall, WrongBytes, WrongContentRange};
    let content = Arc::new(Content::tiny().await);
    let blob = content.largest();
    let fails = || Expect::fails(&[&blob["sha256:".len()..][..12]]);
    let cases = vec![
        case("cut once", &blob, (&[Short], Healthy), Expect::Works),
        case("cut three times", &blob, (&[Short, Short, Short], Healthy), Expect::Works),
        case("cut for ever", &blob, (&[], Short), Expect::Either),
        case("no ranges after a cut", &blob, (&[Short], NoRanges), Expect::Works),
        case("another range after a cut", &blob, (&[Short], WrongContentRange), Expect::Either),
        case("wrong bytes after a cut", &blob, (&[Short, WrongBytes], Healthy), Expect::Works),
        case("stalls once", &blob, (&[Stall], Healthy), Expect::Works),
        case("stalls for ever", &blob, (&[], Stall), fails()),
    ];
    check_all(content, cases).await;
}

#[tokio::test]
async fn refused_and_redirected() {
    use Behaviour::{Healthy, Later, Redirect, RedirectLoop, Status};
    let content = Arc::new(Content::tiny().await);
    let blob = content.largest();
    let storm = [Status(503), Status(502), Status(504)];
    let file = Redirect("file:///etc/hostname".to_owned());
    let nowhere = Redirect("http://127.0.0.1:1/blob".to_owned());
    let cases = vec![
        case("three errors", &blob, (&storm, Healthy), Expect::Works),
        case("errors for ever", &blob, (&[], Status(503)), Expect::fails(&["503"])),
        case("too many requests, once", &blob, (&[Later], Healthy), Expect::Works),
        case("too many requests, for ever", &blob, (&[], Later), Expect::fails(&[])),
        case("not there", &blob, (&[], Status(404)), Expect::fails(&[&blob["sha256:".len()..][..12]])),
        case("not allowed", &blob, (&[], Status(403)), Expect::fails(&[])),
        case("a teapot", &blob, (&[], Status(418)), Expect::fails(&["418"])),
        case("redirected in a circle", &blob, (&[], RedirectLoop), Expect::fails(&["redirect"])),
        case("redirected to a file", &blob, (&[], file), Expect::fails(&[])),
        case("redirected to nobody", &blob, (&[], nowhere), Expect::fails(&[])),
        case("redirected to nothing", &blob, (&[], Redirect(String::new())), Expect::fails(&[])),
    ];
    check_all(content, cases).await;
}

#[tokio::test]
async fn a_redirect_takes_no_password_elsewhere() {
    let content = Content::tiny().await;
    let (registry, elsewhere) = (Registry::start(&content), Registry::start(&content));
    registry.guard(Door::Basic);
    for digest in content.blobs.keys() {
        let url = format!("http://{}/v2/storage/blobs/{digest}", elsewhere.address);
        registry.script(digest, &[], Behaviour::Redirect(url));
    }
    let target = Server::prepared(&[], |home| password(home, &registry.address)).await;
    target.pull(&format!("{}/library/tiny", registry.address)).await;
    assert_eq!(elsewhere.asked(), content.blobs.keys().cloned().collect());
    assert!(registry.seen().iter().any(|seen| seen.authorization.is_some()));
    let told: Vec<_> = elsewhere.seen().into_iter().filter(|seen| seen.authorization.is_some()).collect();
    assert!(told.is_empty(), "{told:?}");
}
