//! Tests of all combinations of modes, actions and identities, at the level of requests.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

const BASE: &str = "http://registry.test:5000";

/// Access control with the users `anna` (password `secret`) and `béla` (`geheim`), and a fixed
/// clock.
struct Fixture {
    access: Access,
    key: TokenKey,
    now: Arc<AtomicU64>,
    users: PathBuf,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new(mode: Mode) -> Self {
        Self::with(mode, |_| {})
    }

    fn with(mode: Mode, change: impl FnOnce(&mut AccessOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let users = folder.path().join("users");
        let hash = |password| bcrypt::hash(password, 4).expect("a hash");
        fs::write(&users, format!("anna:{}\nbéla:{}\n", hash("secret"), hash("geheim"))).expect("written");
        let now = Arc::new(AtomicU64::new(1_700_000_000));
        let key = TokenKey::random();
        let mut options = AccessOptions::new(mode, key.clone());
        options.users = Some(UserSource::File(users.clone()));
        let clock = Arc::clone(&now);
        options.clock = Clock::new(move || UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::Relaxed)));
        change(&mut options);
        Self { access: Access::new(options).expect("access"), key, now, users, _folder: folder }
    }

    /// `ok`, `ok USER`, or the status of the refusal.
    async fn outcome(&self, authorization: &str, repository: Option<&str>, action: Action) -> String {
        let name = repository.map(name);
        match self.access.check(&headers(authorization), BASE, name.as_ref(), action).await {
            Ok(Identity { user: Some(user), .. }) => format!("ok {user}"),
            Ok(Identity { user: None, .. }) => "ok".to_owned(),
            Err(refusal) => refusal.into_response().status().as_u16().to_string(),
        }
    }

    async fn challenge(&self, authorization: &str, repository: Option<&str>, action: Action) -> String {
        let name = repository.map(name);
        match self.access.check(&headers(authorization), BASE, name.as_ref(), action).await {
            Err(Refusal::Unauthorized { challenge, .. }) => challenge.to_str().expect("text").to_owned(),
            other => panic!("expected a challenge, got {other:?}"),
        }
    }

    /// The header with a token for the scope.
    async fn token(&self, authorization: &str, scope: &str) -> String {
        let (status, body) = read(self.access.token(&headers(authorization), &query(scope)).await).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(body["token"], body["access_token"]);
        format!("Bearer {}", body["token"].as_str().expect("a token"))
    }
}

fn name(text: &str) -> RepositoryName {
    RepositoryName::parse(text).expect("a name")
}

fn headers(authorization: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if !authorization.is_empty() {
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(authorization).expect("a header"));
    }
    headers
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

fn query(scope: &str) -> String {
    format!("service=lode&account=anna&scope={}", scope.replace(':', "%3A").replace(' ', "+"))
}

async fn read(response: Response) -> (StatusCode, serde_json::Value) {
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.expect("a body");
    (status, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn access_by_mode_action_and_identity() {
    use Action::{Delete, Pull, Push};
    use Mode::{AnonymousPull, Open, Private, ReadOnly};
    let (nobody, anna, wrong) = (String::new(), basic("anna", "secret"), basic("anna", "geheim"));
    let stranger = basic("eve", "secret");
    let malformed = "Negotiate x".to_owned();
    for (mode, who, expect) in [
        // (base, pull, push, delete)
        (Open, &nobody, ["ok", "ok", "ok", "ok"]),
        (Open, &anna, ["ok", "ok", "ok", "ok"]),
        (Open, &wrong, ["ok", "ok", "ok", "ok"]),
        (ReadOnly, &nobody, ["ok", "ok", "403", "403"]),
        (ReadOnly, &anna, ["ok", "ok", "403", "403"]),
        (AnonymousPull, &nobody, ["401", "ok", "401", "401"]),
        (AnonymousPull, &anna, ["ok anna", "ok anna", "ok anna", "ok anna"]),
        (AnonymousPull, &wrong, ["401", "401", "401", "401"]),
        (Private, &nobody, ["401", "401", "401", "401"]),
        (Private, &anna, ["ok anna", "ok anna", "ok anna", "ok anna"]),
        (Private, &wrong, ["401", "401", "401", "401"]),
        (Private, &stranger, ["401", "401", "401", "401"]),
        (Private, &malformed, ["401", "401", "401", "401"]),
    ] {
        let fixture = Fixture::new(mode);
        let asked = [(None, Pull), (Some("a/b"), Pull), (Some("a/b"), Push), (Some("a/b"), Delete)];
        for ((repository, action), expect) in asked.into_iter().zip(expect) {
            let outcome = fixture.outcome(who, repository, action).await;
            assert_eq!(outcome, expect, "{mode} `{who}` {repository:?} {action:?}");
        }
    }
}

#[tokio::test]
async fn access_tokens_grant_what_was_asked_for() {
    use Action::{Delete, Pull, Push};
    let anna = basic("anna", "secret");
    let fixture = Fixture::new(Mode::Private);
    for (scope, expect) in [
        // (base, pull a, push a, delete a, pull b)
        ("repository:a:pull", ["ok anna", "ok anna", "401", "401", "401"]),
        ("repository:a:pull,push", ["ok anna", "ok anna", "ok anna", "401", "401"]),
        ("repository:a:delete", ["ok anna", "401", "401", "ok anna", "401"]),
        ("repository:a:push repository:b:pull", ["ok anna", "401", "ok anna", "401", "ok anna"]),
        ("repository:a:*", ["ok anna", "401", "401", "401", "401"]),
        ("repository:*:pull", ["ok anna", "401", "401", "401", "401"]),
        ("registry:catalog:*", ["ok anna", "401", "401", "401", "401"]),
        ("", ["ok anna", "401", "401", "401", "401"]),
    ] {
        let token = fixture.token(&anna, scope).await;
        let asked = [(None, Pull), (Some("a"), Pull), (Some("a"), Push), (Some("a"), Delete), (Some("b"), Pull)];
        for ((repository, action), expect) in asked.into_iter().zip(expect) {
            let outcome = fixture.outcome(&token, repository, action).await;
            assert_eq!(outcome, expect, "`{scope}` {repository:?} {action:?}");
        }
    }
}

#[tokio::test]
async fn access_tokens_of_strangers_pull_only() {
    let fixture = Fixture::new(Mode::AnonymousPull);
    let token = fixture.token("", "repository:a:pull,push,delete").await;
    assert_eq!(fixture.outcome(&token, None, Action::Pull).await, "ok");
    assert_eq!(fixture.outcome(&token, Some("a"), Action::Pull).await, "ok");
    assert_eq!(fixture.outcome(&token, Some("a"), Action::Push).await, "401");
    assert_eq!(fixture.outcome(&token, Some("a"), Action::Delete).await, "401");
    // Some clients send this if they have no password.
    assert_eq!(fixture.outcome("Basic Og==", Some("a"), Action::Pull).await, "ok");
    // A token that was issued in the open mode grants nothing in another mode.
    let open = Fixture::with(Mode::Open, |options| options.token_key = fixture.key.clone());
    let token = open.token("", "repository:a:pull,push").await;
    assert_eq!(fixture.outcome(&token, Some("a"), Action::Push).await, "401");
    let private = Fixture::with(Mode::Private, |options| options.token_key = fixture.key.clone());
    for repository in [None, Some("a")] {
        assert_eq!(private.outcome(&token, repository, Action::Pull).await, "401");
    }
}

#[tokio::test]
async fn access_tokens_end() {
    let fixture = Fixture::with(Mode::Private, |options| options.token_life = Duration::from_mins(5));
    let token = fixture.token(&basic("anna", "secret"), "repository:a:pull").await;
    let bela = fixture.token(&basic("béla", "geheim"), "repository:a:pull").await;
    assert_eq!(fixture.outcome(&bela, Some("a"), Action::Pull).await, "ok béla");
    // A removed user is refused at once.
    let anna = fs::read_to_string(&fixture.users).expect("users").lines().next().expect("anna").to_owned();
    fs::write(&fixture.users, anna).expect("written");
    assert_eq!(fixture.outcome(&bela, Some("a"), Action::Pull).await, "401");
    assert_eq!(fixture.outcome(&basic("béla", "geheim"), Some("a"), Action::Pull).await, "401");
    assert_eq!(fixture.outcome(&token, Some("a"), Action::Pull).await, "ok anna");
    fixture.now.fetch_add(300 + 60, Ordering::Relaxed);
    assert_eq!(fixture.outcome(&token, Some("a"), Action::Pull).await, "401");
    let challenge = fixture.challenge(&token, Some("a"), Action::Pull).await;
    assert!(challenge.ends_with(",error=\"invalid_token\""), "{challenge}");
}

#[tokio::test]
async fn access_challenges_say_how_to_go_on() {
    let bearer = Fixture::new(Mode::Private);
    let realm = r#"Bearer realm="http://registry.test:5000/v2/token",service="lode""#;
    for (repository, action, scope) in [
        (Some("a/b"), Action::Pull, r#",scope="repository:a/b:pull""#),
        (Some("a/b"), Action::Push, r#",scope="repository:a/b:pull,push""#),
        (Some("a/b"), Action::Delete, r#",scope="repository:a/b:pull,delete""#),
        (None, Action::Pull, r#",scope="registry:catalog:*""#),
    ] {
        assert_eq!(bearer.challenge("", repository, action).await, format!("{realm}{scope}"));
    }
    let pull = bearer.token(&basic("anna", "secret"), "repository:a:pull").await;
    let challenge = bearer.challenge(&pull, Some("a"), Action::Push).await;
    assert_eq!(challenge, format!(r#"{realm},scope="repository:a:pull,push",error="insufficient_scope""#));
    let offers_basic = Fixture::with(Mode::Private, |options| options.challenge = Challenge::Basic);
    assert_eq!(offers_basic.challenge("", Some("a"), Action::Pull).await, r#"Basic realm="lode""#);
    // The kind of authentication that is not offered is accepted too.
    let token = offers_basic.token(&basic("anna", "secret"), "repository:a:pull").await;
    assert_eq!(offers_basic.outcome(&token, Some("a"), Action::Pull).await, "ok anna");
}

#[tokio::test]
async fn access_token_endpoint_refuses() {
    let fixture = Fixture::new(Mode::Private);
    let token = fixture.token(&basic("anna", "secret"), "repository:a:pull").await;
    for who in ["", &basic("anna", "wrong"), &basic("eve", "secret"), "Digest x", &token] {
        let response = fixture.access.token(&headers(who), &query("repository:a:pull")).await;
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], r#"Basic realm="lode""#, "{who}");
        let (status, body) = read(response).await;
        assert_eq!((status, &body["errors"][0]["code"]), (StatusCode::UNAUTHORIZED, &"UNAUTHORIZED".into()), "{who}");
    }
    let many: Vec<String> = (0..17).map(|n| format!("repository:r{n}:pull")).collect();
    for bad in [many.join(" "), "a".repeat(9000)] {
        let response = fixture.access.token(&headers(&basic("anna", "secret")), &query(&bad)).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    }
    let response = fixture.access.token(&headers(&basic("anna", "secret")), "").await;
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    let (status, body) = read(response).await;
    assert_eq!((status, &body["expires_in"]), (StatusCode::OK, &900.into()));
    assert_eq!(body["issued_at"], "2023-11-14T22:13:20Z");
}

#[tokio::test]
async fn access_links_let_one_blob_through() {
    let fixture = Fixture::new(Mode::Private);
    let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
    let query = fixture.access.sign_blob(&name("a"), &one);
    let passes = async |repository: &str, digest: &Digest, query: Option<&str>| {
        fixture.access.check_blob(&headers(""), BASE, &name(repository), digest, query).await.is_ok()
    };
    assert!(passes("a", &one, Some(&query)).await);
    assert!(!passes("a", &two, Some(&query)).await);
    assert!(!passes("b", &one, Some(&query)).await);
    assert!(!passes("a", &one, None).await);
    fixture.now.fetch_add(6 * 3600, Ordering::Relaxed);
    assert!(!passes("a", &one, Some(&query)).await);
    let anna = headers(&basic("anna", "secret"));
    assert!(fixture.access.check_blob(&anna, BASE, &name("a"), &two, Some(&query)).await.is_ok());
    assert!(!fixture.access.anyone_may_pull());
    assert!(Access::open().anyone_may_pull());
    assert!(Access::open().check_blob(&headers(""), BASE, &name("a"), &one, None).await.is_ok());
}

#[test]
fn access_refuses_bad_options() {
    for mode in [Mode::AnonymousPull, Mode::Private] {
        let error = Access::new(AccessOptions::new(mode, TokenKey::random())).expect_err("no users");
        assert!(matches!(error, AccessError::NeedsUsers(_)) && error.to_string().contains("htpasswd"), "{error}");
    }
    for service in ["", "a\"b", "a\nb", "é", &"a".repeat(129)] {
        let mut options = AccessOptions::new(Mode::Open, TokenKey::random());
        service.clone_into(&mut options.service);
        assert!(matches!(Access::new(options), Err(AccessError::Service(_))), "{service}");
    }
    for mode in Mode::ALL {
        assert_eq!(Mode::parse(mode.as_str()), Some(mode));
    }
    assert_eq!(Mode::parse("Open"), None);
}
