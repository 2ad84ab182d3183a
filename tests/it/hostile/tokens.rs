//! Registries that require authentication, and token services that issue no usable token.

use std::sync::Arc;

use super::door::{Door, Tokens};
use super::registry::{Content, Registry};
use super::{Case, Expect, check_all};

#[tokio::test]
async fn doors_that_open() {
    let content = Arc::new(Content::tiny().await);
    let case =
        |name, door: fn() -> Door| Case::new(name, Expect::Works, move |registry: &Registry| registry.guard(door()));
    let cases = vec![
        case("a password", || Door::Basic),
        case("a token", || Door::Tokens(Tokens::Good)),
        case("a token that expires on the way", || Door::Tokens(Tokens::Expiring(7))),
    ];
    check_all(content, cases).await;
}

#[tokio::test]
async fn doors_that_do_not() {
    let content = Arc::new(Content::tiny().await);
    let case = |name, door: fn() -> Door| {
        Case::new(name, Expect::fails(&[]), move |registry: &Registry| registry.guard(door()))
    };
    let cases = vec![
        case("a page", || Door::Tokens(Tokens::Page)),
        case("no token", || Door::Tokens(Tokens::None)),
        case("endless", || Door::Tokens(Tokens::Endless)),
        case("in a circle", || Door::Tokens(Tokens::Loop)),
        case("a token that is not taken", || Door::Tokens(Tokens::Refused)),
        case("broken", || Door::Tokens(Tokens::Broken)),
        case("a header in a token", || Door::Tokens(Tokens::Smuggled)),
        case("no challenge", || Door::Challenge(None)),
        case("half a challenge", || Door::Challenge(Some("Bearer realm="))),
        case("a challenge without a realm", || Door::Challenge(Some("Bearer service=\"x\""))),
        case("a file for a realm", || Door::Challenge(Some("Bearer realm=\"file:///etc/hostname\",service=\"x\""))),
        case("an unknown scheme", || Door::Challenge(Some("Negotiate"))),
    ];
    check_all(content, cases).await;
}
