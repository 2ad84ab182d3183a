//! Tests of tokens and passwords, and of the servers that receive them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;

use super::fake::{Fake, answer, get, host, password, pull, request};
use crate::client::{Action, Credential, Error, Payload, Scope};

/// A registry that accepts the token `token-N`, where `N` is the number in `valid`. Other requests
/// are challenged with `realm`.
async fn registry(realm: String, valid: Arc<AtomicUsize>) -> Fake {
    Fake::serve(move |request, _| {
        if request.authorization() == format!("Bearer token-{}", valid.load(Ordering::SeqCst)) {
            return answer(200, &[], "fine");
        }
        let challenge = format!(r#"Bearer realm="{realm}",service="the registry",scope="repository:a/b:pull""#);
        answer(401, &[("www-authenticate", &challenge)], r#"{"errors":[{"code":"UNAUTHORIZED","message":"who?"}]}"#)
    })
    .await
}

/// A token service that issues `token-0`, `token-1` and so on.
async fn tokens(expires_in: u64) -> Fake {
    Fake::serve(move |_, before| answer(200, &[], format!(r#"{{"token":"token-{before}","expires_in":{expires_in}}}"#)))
        .await
}

#[tokio::test]
async fn gets_a_token_from_another_host() {
    let tokens = tokens(300).await;
    let registry = registry(tokens.url("/token?x=1"), Arc::default()).await;
    let host = host(&registry.address, Some(password()));
    let scope = Scope { repository: "a/b".into(), actions: Action::Push, mount_from: Some("c".into()) };
    for _ in 0..2 {
        let sent = request(Method::POST, host.url("/v2/a/b/blobs/uploads/"), &scope, Payload::None);
        assert_eq!(host.send(sent).await.expect("let in").status(), 200);
    }
    let asked = tokens.seen();
    assert_eq!(asked.len(), 1, "the second request has the token already");
    assert_eq!((asked[0].method.as_str(), asked[0].path.as_str()), ("GET", "/token"));
    assert_eq!(asked[0].authorization(), "Basic bWU6c2VjcmV0");
    assert_eq!(asked[0].parameters("service"), ["the registry"]);
    assert_eq!(asked[0].parameters("scope"), ["repository:a/b:pull,push", "repository:c:pull"]);
    assert_eq!(asked[0].parameters("x"), ["1"]);
    let sent: Vec<String> = registry.seen().iter().map(|request| request.authorization().to_owned()).collect();
    assert_eq!(sent, ["", "Bearer token-0", "Bearer token-0"], "the password is for the token service only");
}

#[tokio::test]
async fn asks_without_a_login_where_there_is_none() {
    let tokens = tokens(300).await;
    let registry = registry(tokens.url("/token"), Arc::default()).await;
    get(&host(&registry.address, None), "/v2/").await.expect("anybody may");
    assert_eq!(tokens.seen()[0].authorization(), "");
}

#[tokio::test]
async fn another_scope_needs_another_token() {
    let tokens = tokens(300).await;
    let registry = registry(tokens.url("/token"), Arc::default()).await;
    let host = host(&registry.address, None);
    get(&host, "/v2/").await.expect("let in");
    let other = Scope { repository: "other".into(), ..pull().clone() };
    // The registry does not accept the second token.
    let refused = host.send(request(Method::GET, host.url("/v2/"), &other, Payload::None)).await;
    assert!(matches!(refused, Err(Error::Unauthorized { .. })), "{refused:?}");
    assert!(tokens.seen()[1].parameters("scope").contains(&"repository:other:pull".to_owned()));
}

#[tokio::test]
async fn renews_a_token_that_is_refused_later() {
    let (tokens, valid) = (tokens(300).await, Arc::new(AtomicUsize::new(0)));
    let registry = registry(tokens.url("/token"), valid.clone()).await;
    let host = host(&registry.address, None);
    get(&host, "/v2/").await.expect("let in");
    valid.store(1, Ordering::SeqCst);
    assert_eq!(get(&host, "/v2/").await.expect("let in again").status(), 200);
    assert_eq!(tokens.seen().len(), 2);
}

#[tokio::test]
async fn renews_a_token_that_is_old_before_it_is_refused() {
    let (tokens, valid) = (tokens(0).await, Arc::new(AtomicUsize::new(1)));
    let registry = registry(tokens.url("/token"), valid.clone()).await;
    let host = host(&registry.address, None);
    // A token without any lifetime has expired at its first use. The first token is requested after
    // the challenge.
    get(&host, "/v2/").await.expect("let in");
    valid.store(2, Ordering::SeqCst);
    get(&host, "/v2/").await.expect("let in");
    let sent: Vec<String> = registry.seen().iter().map(|request| request.authorization().to_owned()).collect();
    assert_eq!(sent, ["", "Bearer token-1", "Bearer token-2"]);
}

#[tokio::test]
async fn shares_one_token_request() {
    let tokens = tokens(300).await;
    let registry = registry(tokens.url("/token"), Arc::default()).await;
    let host = host(&registry.address, Some(password()));
    let all = (0..16).map(|_| get(&host, "/v2/a/b/manifests/latest"));
    for result in futures_util::future::join_all(all).await {
        assert_eq!(result.expect("let in").status(), 200);
    }
    assert_eq!(tokens.seen().len(), 1);
}

#[tokio::test]
async fn gives_up_when_a_new_token_is_refused() {
    let tokens = tokens(300).await;
    let registry = registry(tokens.url("/token"), Arc::new(AtomicUsize::new(99))).await;
    let host = host(&registry.address, Some(password()));
    let Err(Error::Unauthorized { reason, .. }) = get(&host, "/v2/").await else { panic!("nothing lets it in") };
    assert!(reason.contains("UNAUTHORIZED: who?"), "{reason}");
    assert_eq!((tokens.seen().len(), registry.seen().len()), (1, 2));
}

#[tokio::test]
async fn sends_a_password_where_that_is_wanted() {
    let registry = Fake::serve(|request, _| match request.authorization() {
        "Basic bWU6c2VjcmV0" => answer(200, &[], ""),
        _ => answer(401, &[("www-authenticate", "Basic realm=\"here\"")], ""),
    })
    .await;
    let known = host(&registry.address, Some(password()));
    get(&known, "/v2/").await.expect("let in");
    get(&known, "/v2/").await.expect("let in");
    assert_eq!(registry.seen().len(), 3, "the challenge is remembered");
    for stranger in [
        None,
        Some(Credential::IdentityToken("t".to_owned())),
        Some(Credential::Password { user: "me".to_owned(), password: "wrong".to_owned() }),
    ] {
        let refused = get(&host(&registry.address, stranger), "/v2/").await.expect_err("a stranger");
        let text = refused.to_string();
        assert!(text.contains(&format!("run `lode login {}`", registry.address)), "{text}");
    }
}

#[tokio::test]
async fn exchanges_identity_tokens_and_uses_registry_tokens() {
    let tokens = tokens(300).await;
    let registry = registry(tokens.url("/token"), Arc::default()).await;
    let identity = host(&registry.address, Some(Credential::IdentityToken("se cret".to_owned())));
    get(&identity, "/v2/").await.expect("let in");
    let asked = tokens.seen().remove(0);
    assert_eq!((asked.method.as_str(), asked.query.as_str()), ("POST", ""));
    assert_eq!(
        String::from_utf8_lossy(&asked.body),
        "grant_type=refresh_token&client_id=lode&refresh_token=se+cret&service=the+registry&scope=repository%3Aa%2Fb%3Apull"
    );
    let direct = host(&registry.address, Some(Credential::Bearer("token-0".to_owned())));
    get(&direct, "/v2/").await.expect("let in");
    assert_eq!(tokens.seen().len(), 1, "such a token needs no token service");
}

#[tokio::test]
async fn believes_no_token_service_that_lies() {
    let lies: [(u16, &'static str); 6] = [
        (200, "<html>log in here</html>"),
        (200, "{}"),
        (200, r#"{"token":"a\r\nX-Evil: 1"}"#),
        (401, r#"{"errors":[{"code":"UNAUTHORIZED","message":"wrong password"}]}"#),
        (501, "oops"),
        (204, ""),
    ];
    for (status, body) in lies {
        let tokens = Fake::serve(move |_, _| answer(status, &[], body)).await;
        let registry = registry(tokens.url("/token"), Arc::default()).await;
        let result = get(&host(&registry.address, Some(password())), "/v2/").await;
        let Err(Error::Unauthorized { reason, .. }) = result else { panic!("{body} was believed: {result:?}") };
        assert!(reason.contains("its token service `127.0.0.1`"), "{reason}");
        assert!(!reason.contains("secret"), "{reason}");
    }
    let endless = Fake::serve(|_, _| answer(200, &[], "x".repeat(2 << 20))).await;
    let registry = registry(endless.url("/token"), Arc::default()).await;
    let result = get(&host(&registry.address, None), "/v2/").await;
    assert!(matches!(result, Err(Error::Unauthorized { .. })), "{result:?}");
}

#[tokio::test]
async fn refuses_challenges_that_lead_nowhere() {
    for challenge in ["", "Digest realm=x", "Bearer realm=nonsense", "Bearer realm=\"ftp://127.0.0.1/\"", "\"\\"] {
        let registry = Fake::serve(move |_, _| answer(401, &[("www-authenticate", challenge)], "")).await;
        let result = get(&host(&registry.address, Some(password())), "/v2/").await;
        assert!(matches!(result, Err(Error::Unauthorized { .. })), "{challenge}: {result:?}");
        assert_eq!(registry.seen().len(), 1, "{challenge}");
    }
}

#[tokio::test]
async fn authorization_stays_with_its_host() {
    let storage = Fake::serve(|_, _| answer(200, &[], "the blob")).await;
    let elsewhere = storage.url("/signed?signature=1");
    let registry = Fake::serve(move |request, _| match (request.authorization(), request.path.as_str()) {
        ("", _) => answer(401, &[("www-authenticate", "Basic")], ""),
        (_, "/v2/here") => answer(307, &[("location", "/v2/there?x=1")], ""),
        (_, "/v2/elsewhere") => answer(307, &[("location", &elsewhere)], ""),
        _ => answer(200, &[], "from here"),
    })
    .await;
    let host = host(&registry.address, Some(password()));
    let response = get(&host, "/v2/here").await.expect("followed");
    assert_eq!(host.body(response, 100).await.expect("a body"), "from here");
    let response = get(&host, "/v2/elsewhere").await.expect("followed");
    assert_eq!(host.body(response, 100).await.expect("a body"), "the blob");
    let there = registry.seen().into_iter().find(|request| request.path == "/v2/there").expect("it was asked");
    assert_eq!((there.authorization(), there.query.as_str()), ("Basic bWU6c2VjcmV0", "x=1"));
    assert_eq!(storage.seen()[0].authorization(), "");
    // A URL of another host, such as a `Location` that the caller follows, gets no password either.
    let other = storage.url("/v2/upload").parse().expect("a URL");
    host.send(request(Method::PUT, other, pull(), Payload::None)).await.expect("an answer");
    assert_eq!(storage.seen()[1].authorization(), "");
}

#[tokio::test]
async fn no_password_for_another_host_that_asks() {
    let thief = Fake::serve(|_, _| answer(401, &[("www-authenticate", "Basic realm=\"thief\"")], "")).await;
    let elsewhere = thief.url("/");
    let registry = Fake::serve(move |_, _| answer(302, &[("location", &elsewhere)], "")).await;
    let result = get(&host(&registry.address, Some(password())), "/v2/").await;
    assert!(matches!(result, Err(Error::Unauthorized { .. })), "{result:?}");
    assert_eq!(thief.seen().len(), 1);
}
