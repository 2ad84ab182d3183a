//! Logins with tokens of an identity provider, and users from the environment.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use registry::server::access::htpasswd_line;
use reqwest::header::AUTHORIZATION;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

use super::{Replica, client};
use crate::server::Server;
use crate::support::tiny_model;

/// A provider with a key for ES256 and one for RS256.
struct Provider {
    url: String,
    key: EcdsaKeyPair,
    folder: tempfile::TempDir,
    fails: Arc<AtomicBool>,
}

fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("openssl");
    let child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("openssl runs");
    child.stdin.take().expect("its input").write_all(input).expect("written");
    let ended = child.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "openssl {arguments:?}");
    ended.stdout
}

/// The modulus of an RSA key.
fn modulus(key: &str) -> Vec<u8> {
    let text = String::from_utf8(openssl(&["rsa", "-in", key, "-modulus", "-noout"], b"")).expect("text");
    let digits = text.trim().strip_prefix("Modulus=").expect("a modulus");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
}

fn encoded(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

impl Provider {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).expect("a key");
        let rsa = folder.path().join("rsa.pem").to_str().expect("UTF-8").to_owned();
        openssl(&["genrsa", "-out", &rsa, "2048"], b"");
        let point = key.public_key().as_ref();
        let keys = json!({"keys": [
            {"kty": "oct", "kid": "other", "k": "AAAA"},
            {"kty": "EC", "kid": "ec", "crv": "P-256", "use": "sig", "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..])},
            {"kty": "RSA", "kid": "rsa", "alg": "RS256", "n": URL_SAFE_NO_PAD.encode(modulus(&rsa)), "e": "AQAB"},
        ]});
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let discovery = json!({"issuer": url, "jwks_uri": format!("{url}/keys")});
        let fails = Arc::new(AtomicBool::new(false));
        let answer = |State(fails): State<Arc<AtomicBool>>| async move {
            if fails.load(Ordering::SeqCst) { Err(StatusCode::BAD_GATEWAY) } else { Ok(Json(keys)) }
        };
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(|| async { Json(discovery) }))
            .route("/keys", get(answer))
            .with_state(fails.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, key, folder, fails }
    }

    fn claims(&self) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        json!({"iss": self.url, "aud": ["registry", "other"], "sub": "job:7", "exp": now + 300, "repository": "org/x"})
    }

    /// A token of claims that are changed by `change`.
    fn token(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = self.claims();
        change(&mut claims);
        let text = format!("{}.{}", encoded(&json!({"alg": "ES256", "kid": "ec"})), encoded(&claims));
        let tag = self.key.sign(&SystemRandom::new(), text.as_bytes()).expect("a signature");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    fn rsa_token(&self) -> String {
        let text = format!("{}.{}", encoded(&json!({"alg": "RS256", "kid": "rsa"})), encoded(&self.claims()));
        let key = self.folder.path().join("rsa.pem");
        let tag = openssl(&["dgst", "-sha256", "-sign", key.to_str().expect("UTF-8")], text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Starts a registry for users and for jobs of the provider.
    async fn registry(&self, folder: &Path) -> Replica {
        let rules = folder.join("rules.toml");
        let text = format!(
            "[[provider]]\nissuer = {:?}\naudience = \"registry\"\n[[provider.grant]]\nclaims = {{ repository = \"org/*\" }}\nrepositories = [\"team/**\"]\nactions = [\"pull\", \"push\"]\n",
            self.url
        );
        std::fs::write(&rules, text).expect("written");
        let environment = [("LODE_REGISTRY_MODE", "private"), ("LODE_REGISTRY_HTPASSWD", &HTPASSWD)];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let rules = rules.to_str().expect("UTF-8");
        Replica::start(&["--storage", "memory://", "--rules", rules], &environment).await
    }
}

static HTPASSWD: LazyLock<String> =
    LazyLock::new(|| format!("# users\n{}\n", htpasswd_line("anna", "secret").expect("a line").trim()));

/// Begins an upload; returns the status and the body of the response.
async fn begin(replica: &Replica, repository: &str, authorization: &str) -> (u16, String) {
    let request = client().post(replica.url(&format!("/v2/{repository}/blobs/uploads/")));
    let answer = request.header(AUTHORIZATION, authorization).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a body"))
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

#[tokio::test]
async fn tokens_of_a_provider_are_logins() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let provider = Provider::start().await;
    let replica = provider.registry(folder.path()).await;
    let good = provider.token(|_| ());
    for authorization in [
        format!("Bearer {good}"),
        basic("any", &good),
        format!("Bearer {}", provider.rsa_token()),
        basic("anna", "secret"),
    ] {
        assert_eq!(begin(&replica, "team/m", &authorization).await.0, 202, "{authorization}");
    }
    let (code, body) = begin(&replica, "other/m", &format!("Bearer {good}")).await;
    assert!(code == 403 && body.contains("job:7@127.0.0.1") && body.contains("push"), "{code} {body}");
    assert_eq!(begin(&replica, "other/m", &basic("anna", "secret")).await.0, 202, "users may do everything");
    let delete = client().delete(replica.url("/v2/team/m/manifests/v1")).bearer_auth(&good).send().await;
    assert_eq!(delete.expect("an answer").status(), 403, "the grant has no `delete`");
    let stranger = provider.token(|claims| claims["repository"] = json!("other/x"));
    let (code, body) = begin(&replica, "team/m", &format!("Bearer {stranger}")).await;
    assert!(code == 401 && body.contains("no grant"), "{code} {body}");
    let catalog = async |authorization: String| {
        let request = client().get(replica.url("/v2/_catalog")).header(AUTHORIZATION, authorization);
        request.send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(catalog(format!("Bearer {good}")).await, 403, "the grant is for `team/**`");
    assert_eq!(catalog(basic("anna", "secret")).await, 200);

    // Clients of the token service get a token for the intersection.
    let url = replica.url("/v2/token?scope=repository:team/m:pull,push,delete&scope=repository:other/m:pull");
    let given: Value =
        client().get(url).basic_auth("ci", Some(&good)).send().await.expect("an answer").json().await.expect("JSON");
    let token = given["token"].as_str().expect("a token");
    let claims: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).expect("claims")).expect("base64"))
            .expect("JSON");
    assert_eq!(claims["access"], json!([{"type": "repository", "name": "team/m", "actions": ["pull", "push"]}]));
    assert!(given["expires_in"].as_u64().is_some_and(|seconds| seconds <= 300), "{given}");
    assert_eq!(begin(&replica, "team/m", &format!("Bearer {token}")).await.0, 202);
    assert_eq!(begin(&replica, "other/m", &format!("Bearer {token}")).await.0, 401);
    assert_eq!(catalog(format!("Bearer {token}")).await, 403);
}

#[tokio::test]
async fn a_mode_that_ignores_logins_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rules = folder.path().join("rules.toml");
    let text = "[[provider]]\nissuer = \"https://i.example\"\naudience = \"a\"\n[[provider.grant]]\nclaims = { sub = \"*\" }\nrepositories = [\"**\"]\nactions = [\"push\"]\n";
    std::fs::write(&rules, text).expect("written");
    let rules = rules.to_str().expect("UTF-8");
    let error = super::fails(&["--storage", "memory://", "--rules", rules], &[]).await;
    assert!(error.contains("LODE_REGISTRY_MODE") && error.contains("anonymous-pull"), "{error}");
}

#[tokio::test]
async fn wrong_tokens_of_a_provider_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let provider = Provider::start().await;
    let replica = provider.registry(folder.path()).await;
    let good = provider.token(|_| ());
    let parts: Vec<&str> = good.split('.').collect();
    let with_header = |header: Value| format!("{}.{}.{}", encoded(&header), parts[1], parts[2]);
    let more = {
        let mut claims = provider.claims();
        claims["repository"] = json!("org/admin");
        format!("{}.{}.{}", parts[0], encoded(&claims), parts[2])
    };
    for (token, reason) in [
        (provider.token(|claims| claims["exp"] = json!(1_700_000_000)), "expired"),
        (provider.token(|claims| claims["nbf"] = json!(9_000_000_000_u64)), "not valid yet"),
        (provider.token(|claims| claims["aud"] = json!("another")), "is `another`, expected `registry`"),
        (provider.token(|claims| drop(claims.as_object_mut().expect("claims").remove("exp"))), "`exp`"),
        (provider.token(|claims| claims["sub"] = json!("")), "`sub`, which names the user"),
        (more, "signature"),
        (with_header(json!({"alg": "none"})), "not accepted"),
        (with_header(json!({"alg": "HS256", "kid": "ec"})), "not accepted"),
        (with_header(json!({"alg": "RS256", "kid": "ec"})), "signature"),
        (with_header(json!({"alg": "ES256", "kid": "unknown"})), "signature"),
        (with_header(json!({"alg": "ES256", "kid": "ec", "crit": ["x"]})), "extensions"),
        (format!("{}.{}.", parts[0], parts[1]), "signature"),
    ] {
        let (code, body) = begin(&replica, "team/m", &format!("Bearer {token}")).await;
        assert!(code == 401 && body.contains(reason), "{reason}: {code} {body}");
    }
    let other = provider.token(|claims| claims["iss"] = json!("https://other.example"));
    assert_eq!(begin(&replica, "team/m", &format!("Bearer {other}")).await.0, 401);
}

#[tokio::test]
async fn a_provider_that_fails_is_tried_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let provider = Provider::start().await;
    let replica = provider.registry(folder.path()).await;
    provider.fails.store(true, Ordering::SeqCst);
    let good = provider.token(|_| ());
    let (code, body) = begin(&replica, "team/m", &format!("Bearer {good}")).await;
    assert!(code == 503 && body.contains("identity provider"), "{code} {body}");
    assert!(replica.text().contains("502"), "{}", replica.text());
    assert_eq!(begin(&replica, "team/m", &basic("anna", "secret")).await.0, 202, "users do not depend on it");
}

/// The client of this project logs in with a token as password.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_pushed_with_a_token() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let provider = Provider::start().await;
    let replica = provider.registry(folder.path()).await;
    let server = Server::start(&[]).await;
    server.create("mine", &tiny_model()).await;
    let login = ["login", &replica.address, "--username", "ci", "--password-stdin"];
    let done = server.lode_reading(&login, &provider.token(|_| ()));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let push = |name: &str| server.lode(&["push", "mine", &format!("{}/{name}", replica.address)]);
    let done = push("team/mine:1");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!push("other/mine:1").status.success());
}
