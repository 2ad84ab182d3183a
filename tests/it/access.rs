//! Access rights: every call of the OpenAPI document and of the registry, for every kind of caller.

use std::collections::BTreeSet;
use std::path::PathBuf;

use reqwest::Method;
use serde_json::Value;

use crate::guard::all_keys;
use crate::server::Server;
use crate::support::{object, own_address, skip, tiny_model};

const EVIL_HOST: &str = "evil.example.com";
const EVIL_PAGE: &str = "https://evil.example.com";

/// A call with the scope that it needs; `None` if every client may make it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    method: String,
    path: String,
    scope: Option<String>,
}

impl Call {
    fn is_of_registry(&self) -> bool {
        self.path.starts_with("/v2")
    }

    fn changes(&self) -> bool {
        self.scope.as_deref().is_some_and(|scope| ["write", "admin"].contains(&scope))
    }
}

/// Returns the calls of the OpenAPI document, and those of the registry, which another
/// specification describes.
async fn calls(server: &Server) -> Vec<Call> {
    let document: Value =
        server.http.get(server.url("/openapi.json")).send().await.expect("an answer").json().await.expect("JSON");
    let mut calls = BTreeSet::new();
    for (path, methods) in object(&document["paths"]) {
        for (method, operation) in object(methods) {
            calls.insert(Call {
                method: method.to_ascii_uppercase(),
                path: path.replace("{digest}", &format!("sha256:{}", "0".repeat(64))).replace("{model}", "none"),
                scope: operation["x-lode-scope"].as_str().map(str::to_owned),
            });
        }
    }
    assert!(calls.len() > 40, "{calls:?}");
    let blob = format!("/v2/library/none/blobs/sha256:{}", "0".repeat(64));
    for (method, path, scope) in [
        ("GET", "/v2/", "read"),
        ("GET", "/v2/_catalog", "read"),
        ("GET", "/v2/library/tiny/tags/list", "read"),
        ("GET", "/v2/library/tiny/manifests/latest", "read"),
        ("HEAD", "/v2/library/tiny/manifests/latest", "read"),
        ("GET", &blob, "read"),
        ("HEAD", &blob, "read"),
        ("POST", "/v2/library/none/blobs/uploads/", "write"),
        ("PUT", "/v2/library/none/manifests/latest", "write"),
        ("DELETE", "/v2/library/none/manifests/latest", "write"),
        ("DELETE", &blob, "write"),
        ("PATCH", "/v2/library/none/blobs/uploads/some", "write"),
    ] {
        let (method, path, scope) = (method.to_owned(), path.to_owned(), Some(scope.to_owned()));
        calls.insert(Call { method, path, scope });
    }
    calls.into_iter().collect()
}

/// The sender of a request: the address that it uses, and the headers that describe it.
#[derive(Clone, Debug)]
struct Sender<'a> {
    /// The base URL. The address in it determines the source address of the request.
    base: &'a str,
    is_remote: bool,
    host: Option<&'static str>,
    origin: Option<&'static str>,
    /// Whether a proxy's `X-Forwarded-*` headers are added.
    proxied: bool,
}

async fn status(server: &Server, call: &Call, sender: &Sender<'_>, key: Option<&str>) -> u16 {
    let method: Method = call.method.parse().expect("a method");
    let mut request = server.http.request(method, format!("{}{}", sender.base, call.path));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    if let Some(host) = sender.host {
        request = request.header("host", host);
    }
    if let Some(origin) = sender.origin {
        request = request.header("origin", origin);
    }
    if sender.proxied {
        request = request.header("x-forwarded-for", "203.0.113.7").header("x-forwarded-proto", "https");
    }
    // The body asks for nothing that can be done, so that an allowed call fails with a status other
    // than 401 or 403.
    let body = match call.path.as_str() {
        "/api/load" => "no archive",
        // A plan for a model that is not in the store would be requested from a registry.
        "/api/lode/plan" => r#"{"model": "tiny"}"#,
        _ => r#"{"model": "none", "dry_run": true}"#,
    };
    request.body(body).send().await.expect("an answer").status().as_u16()
}

fn senders<'a>(here: &'a str, elsewhere: Option<&'a str>) -> Vec<Sender<'a>> {
    let places = [(here, false)].into_iter().chain(elsewhere.map(|base| (base, true)));
    let mut all = Vec::new();
    for (base, is_remote) in places {
        for (host, origin, proxied) in [
            (None, None, false),
            (Some(EVIL_HOST), None, false),
            (None, Some(EVIL_PAGE), false),
            (None, Some("evil://x"), false),
            (None, Some("http://localhost:3000"), false),
            (None, None, true),
        ] {
            all.push(Sender { base, is_remote, host, origin, proxied });
        }
    }
    all
}

/// Returns the files in a store with their times, without the index and its journal. Those change
/// also on reads, because they cache derived values.
fn store(server: &Server) -> BTreeSet<(PathBuf, std::time::SystemTime)> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![server.home()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            if ["index", "index.journal"].iter().any(|derived| entry.file_name() == *derived) {
                continue;
            }
            let metadata = entry.metadata().expect("metadata");
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                found.insert((entry.path(), metadata.modified().expect("a time")));
            }
        }
    }
    found
}

/// Restarts the daemon so that it listens on all addresses. Returns its loopback URL, and its URL
/// at another address of this machine.
async fn open_to_all(server: Server, environment: &[(&str, &str)]) -> (Server, String, Option<String>) {
    let server = server.restart_on("0.0.0.0", environment).await;
    let here = format!("http://{}", server.address);
    let port = server.address.rsplit(':').next().expect("a port").to_owned();
    let elsewhere = own_address().map(|address| format!("http://{address}:{port}"));
    if elsewhere.is_none() {
        skip("access", "this machine has no address but its own loopback");
    }
    (server, here, elsewhere)
}

#[tokio::test]
async fn a_key_opens_what_its_scope_says_and_no_more() {
    let (server, folder, keys) = all_keys().await;
    let file = folder.path().join("keys");
    let environment = [("LODE_API_KEYS", file.to_str().expect("a path"))];
    let (server, here, elsewhere) = open_to_all(server, &environment).await;
    let calls = calls(&server).await;
    let none = [("nobody", None), ("a stranger", Some("lode-wrong".to_owned()))];
    let known = keys.iter().map(|(scope, key)| (scope.as_str(), Some(key.clone())));
    for (who, key) in none.into_iter().chain(known) {
        let before = store(&server);
        for sender in senders(&here, elsewhere.as_deref()) {
            for call in &calls {
                let is_page = sender.origin.is_some_and(|origin| origin.contains("evil"));
                let expect = match &call.scope {
                    _ if is_page => Some(403),
                    Some(_) if ["nobody", "a stranger"].contains(&who) => Some(401),
                    Some(scope) if scope != who => Some(403),
                    Some(_) | None => None,
                };
                // An allowed change takes long in some cases, so it is not repeated for every
                // sender.
                if expect.is_none() && (sender.proxied || sender.origin.is_some()) && call.changes() {
                    continue;
                }
                let status = status(&server, call, &sender, key.as_deref()).await;
                match expect {
                    Some(expect) => assert_eq!(status, expect, "{call:?} for {who} from {sender:?}"),
                    None => assert!(![401, 403].contains(&status), "{call:?} for {who} from {sender:?}: {status}"),
                }
            }
        }
        if !["write", "admin"].contains(&who) {
            assert_eq!(store(&server), before, "{who} has written something");
        }
    }
}

#[tokio::test]
async fn without_keys_changes_are_for_this_machine() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let (server, here, elsewhere) = open_to_all(server, &[]).await;
    let calls = calls(&server).await;
    let before = store(&server);
    for sender in senders(&here, elsewhere.as_deref()) {
        for call in &calls {
            let is_refused = sender.origin.is_some_and(|origin| origin.contains("evil"))
                || sender.host.is_some()
                || (sender.is_remote && call.changes());
            if !is_refused && call.changes() {
                continue;
            }
            let status = status(&server, call, &sender, None).await;
            if is_refused {
                assert_eq!(status, 403, "{call:?} from {sender:?}");
            } else {
                assert!(![401, 403].contains(&status), "{call:?} from {sender:?}: {status}");
            }
        }
    }
    assert_eq!(store(&server), before, "what only looks and computes has written something");
}

/// With a list of users, the registry accepts only those users, even if API keys exist. All other
/// routes accept only API keys.
#[tokio::test]
async fn users_of_the_registry_have_nothing_else() {
    let (server, folder, keys) = all_keys().await;
    let (file, users) = (folder.path().join("keys"), folder.path().join("users"));
    let made = server.lode_reading(&["htpasswd", "anna", "--password-stdin"], "secret");
    std::fs::write(&users, made.stdout).expect("a file");
    let environment = [
        ("LODE_API_KEYS", file.to_str().expect("a path")),
        ("LODE_REGISTRY_MODE", "private"),
        ("LODE_REGISTRY_USERS", users.to_str().expect("a path")),
    ];
    let (server, here, elsewhere) = open_to_all(server, &environment).await;
    for base in [here].into_iter().chain(elsewhere) {
        for call in calls(&server).await {
            let method: Method = call.method.parse().expect("a method");
            let request = || server.http.request(method.clone(), format!("{base}{}", call.path)).body("{}");
            let as_user =
                request().basic_auth("anna", Some("secret")).send().await.expect("an answer").status().as_u16();
            if call.is_of_registry() {
                assert!(![401, 403].contains(&as_user), "{call:?}: {as_user}");
                for (scope, key) in &keys {
                    let status = request().bearer_auth(key).send().await.expect("an answer").status().as_u16();
                    assert_eq!(status, 401, "{call:?} with a key for {scope}");
                }
            } else if call.scope.is_some() {
                assert_eq!(as_user, 401, "{call:?}");
            }
        }
    }
}
