//! Access control: the hosts, origins, keys and users that the daemon accepts, and the calls that
//! each may make.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::maintenance::fails;
use crate::server::Server;
use crate::support::{skip, tiny_model};

/// Starts a daemon with a key for each list of scopes, and with the model `tiny`.
async fn with_keys<const N: usize>(all: [(&str, &str); N]) -> (Server, tempfile::TempDir, [String; N]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let (mut file, mut keys) = (String::new(), Vec::new());
    for (name, scopes) in all {
        let output = server.lode(&["key", name, "--scopes", scopes]);
        assert!(output.status.success());
        file.push_str(&String::from_utf8_lossy(&output.stdout));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let key = told.split_whitespace().find(|word| word.starts_with("lode-")).expect("a key");
        keys.push(key.to_owned());
    }
    let path = folder.path().join("keys");
    std::fs::write(&path, file).expect("a file");
    let server = server.restart(&[("LODE_API_KEYS", path.to_str().expect("a path"))]).await;
    (server, folder, keys.try_into().expect("as many"))
}

/// Starts a daemon with three keys: `(server, reader, runner, writer)`.
pub(crate) async fn keyed() -> (Server, tempfile::TempDir, [String; 3]) {
    with_keys([("reader", "read"), ("runner", "read,run"), ("writer", "read,write")]).await
}

/// Starts a daemon with a key for each single scope, named after it.
pub(crate) async fn all_keys() -> (Server, tempfile::TempDir, Vec<(String, String)>) {
    let scopes = ["read", "run", "write", "admin"];
    let (server, folder, keys) = with_keys(scopes.map(|scope| (scope, scope))).await;
    (server, folder, scopes.map(str::to_owned).into_iter().zip(keys).collect())
}

/// Starts a daemon with a key that has all scopes and a key that can only read.
pub(crate) async fn owned() -> (Server, tempfile::TempDir, [String; 2]) {
    with_keys([("owner", "read,run,write,admin"), ("reader", "read")]).await
}

async fn status(server: &Server, method: Method, path: &str, header: Option<(&str, String)>) -> (u16, Value) {
    let mut request = server.http.request(method, server.url(path));
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let response = request.json(&json!({"model": "m"})).send().await.expect("an answer");
    (response.status().as_u16(), response.json().await.unwrap_or(Value::Null))
}

#[tokio::test]
async fn keys_open_what_their_scopes_say() {
    let (server, folder, [reader, runner, writer]) = keyed().await;
    let bearer = |key: &str| Some(("authorization", format!("Bearer {key}")));
    for open in ["/", "/healthz", "/readyz", "/api/version"] {
        assert_eq!(status(&server, Method::GET, open, None).await.0, 200, "{open}");
    }
    // 404: the call is allowed, and there is no such model.
    for (method, path, key, expect) in [
        (Method::GET, "/api/tags", None, 401),
        (Method::GET, "/api/tags", bearer("lode-wrong"), 401),
        (Method::GET, "/api/tags", bearer(&reader), 200),
        (Method::GET, "/api/tags", Some(("x-api-key", reader.clone())), 200),
        (Method::POST, "/api/show", bearer(&reader), 404),
        (Method::POST, "/api/generate", bearer(&reader), 403),
        (Method::POST, "/api/generate", bearer(&runner), 404),
        (Method::DELETE, "/api/delete", bearer(&runner), 403),
        (Method::DELETE, "/api/delete", bearer(&writer), 404),
        (Method::POST, "/api/lode/gc", bearer(&writer), 403),
        (Method::GET, "/metrics", None, 401),
    ] {
        let (status, body) = status(&server, method.clone(), path, key).await;
        assert_eq!(status, expect, "{method} {path}: {body}");
    }
    let (_, body) = status(&server, Method::POST, "/v1/chat/completions", None).await;
    assert_eq!(body["error"]["type"], "authentication_error", "{body}");
    let (_, body) = status(&server, Method::POST, "/v1/messages", None).await;
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("authentication_error")), "{body}");

    let path = folder.path().join("keys");
    let rest: Vec<String> =
        std::fs::read_to_string(&path).expect("keys").lines().skip(1).map(|line| format!("{line}\n")).collect();
    std::fs::write(&path, rest.concat()).expect("a file");
    assert_eq!(status(&server, Method::GET, "/api/tags", bearer(&reader)).await.0, 401, "taken back while it runs");

    // The file contains a key in place of its hash.
    std::fs::write(&path, format!("reader {reader} read\n")).expect("a file");
    for path in ["/api/tags", "/v2/"] {
        let (status, body) = status(&server, Method::GET, path, bearer("lode-wrong")).await;
        assert!(status == 500 && body.to_string().contains("API keys"), "{path}: {status} {body}");
        assert!(!body.to_string().contains(&reader), "{path}: {body}");
    }
    assert!(server.log().contains("line 1 of the API keys"), "who looks after the daemon is told");
}

/// Keys apply to the whole port: the registry requires a key too, as `Bearer` or as the password of
/// any user name.
#[tokio::test]
async fn keys_open_the_registry() {
    let (server, folder, [reader, runner, writer]) = keyed().await;
    let bearer = |key: &str| Some(("authorization", format!("Bearer {key}")));
    let basic = |key: &str| Some(("authorization", format!("Basic {}", STANDARD.encode(format!("anybody:{key}")))));
    let blob = format!("/v2/library/m/blobs/sha256:{}", "0".repeat(64));
    let uploads = "/v2/library/m/blobs/uploads/";
    for (method, path, key, expect) in [
        (Method::GET, "/v2/", None, 401),
        (Method::GET, "/v2/_catalog", None, 401),
        (Method::GET, "/v2/library/m/manifests/latest", None, 401),
        (Method::GET, blob.as_str(), None, 401),
        (Method::DELETE, blob.as_str(), None, 401),
        (Method::PUT, "/v2/library/m/manifests/latest", None, 401),
        (Method::POST, uploads, None, 401),
        (Method::GET, "/v2/", bearer("lode-wrong"), 401),
        (Method::GET, "/v2/", basic("lode-wrong"), 401),
        (Method::GET, "/v2/", bearer(&reader), 200),
        (Method::GET, "/v2/", basic(&reader), 200),
        (Method::GET, blob.as_str(), basic(&reader), 404),
        (Method::POST, uploads, basic(&reader), 403),
        (Method::DELETE, blob.as_str(), basic(&runner), 403),
        (Method::DELETE, blob.as_str(), bearer(&writer), 404),
        (Method::POST, uploads, basic(&writer), 202),
    ] {
        let (status, body) = status(&server, method.clone(), path, key).await;
        assert_eq!(status, expect, "{method} {path}: {body}");
        if status == 401 {
            assert_eq!(body["errors"][0]["code"], "UNAUTHORIZED", "{body}");
        }
    }
    let refused = server.http.get(server.url("/v2/")).send().await.expect("an answer");
    let challenge = refused.headers()["www-authenticate"].to_str().expect("text").to_owned();
    assert!(challenge.starts_with(&format!("Bearer realm=\"http://{}/v2/token\"", server.address)), "{challenge}");
    // Behind a TLS proxy, the token URL in the challenge uses `https`, so that clients never send
    // the password in plain text.
    let proxied = server.http.get(server.url("/v2/")).header("x-forwarded-proto", "https").send().await;
    let challenge = proxied.expect("an answer").headers()["www-authenticate"].to_str().expect("text").to_owned();
    assert!(challenge.starts_with("Bearer realm=\"https://"), "{challenge}");
    // A client that exchanges the password for a token gets the key as its token.
    assert_eq!(status(&server, Method::GET, "/v2/token", None).await.0, 401);
    assert_eq!(status(&server, Method::GET, "/v2/token", basic("lode-wrong")).await.0, 401);
    let (_, given) = status(&server, Method::GET, "/v2/token?service=lode", basic(&reader)).await;
    assert_eq!(given["token"], reader, "{given}");
    // A registry with a list of users accepts only those users, and no keys.
    let users = folder.path().join("users");
    let made = server.lode_reading(&["htpasswd", "anna", "--password-stdin"], "secret");
    assert!(made.status.success());
    std::fs::write(&users, made.stdout).expect("a file");
    let keys = folder.path().join("keys");
    let server = server
        .restart(&[
            ("LODE_API_KEYS", keys.to_str().expect("a path")),
            ("LODE_REGISTRY_MODE", "anonymous-pull"),
            ("LODE_REGISTRY_USERS", users.to_str().expect("a path")),
        ])
        .await;
    let anna = Some(("authorization", format!("Basic {}", STANDARD.encode("anna:secret"))));
    assert_eq!(status(&server, Method::GET, &blob, None).await.0, 404, "everybody may pull");
    assert_eq!(status(&server, Method::POST, uploads, basic(&writer)).await.0, 401, "a key is no user");
    assert_eq!(status(&server, Method::POST, uploads, anna).await.0, 202);
    assert_eq!(status(&server, Method::GET, "/api/tags", None).await.0, 401);
}

/// A request must have exactly one consistent host, regardless of its key.
#[tokio::test]
async fn a_request_names_one_host() {
    let server = Server::start(&[]).await;
    let ask = async |lines: &str| {
        let mut connection = TcpStream::connect(&server.address).await.expect("a connection");
        let request = format!("{lines}\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    };
    for (lines, expect) in [
        ("GET /api/tags HTTP/1.1\r\nHost: localhost", 200),
        ("GET /api/tags HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        ("GET /api/tags HTTP/1.1\r\nHost: localhost\r\nHost: evil.example.com", 400),
        ("GET http://localhost/api/tags HTTP/1.1\r\nHost: localhost", 200),
        ("GET http://evil.example.com/api/tags HTTP/1.1\r\nHost: localhost", 403),
        ("GET /api/tags HTTP/1.1\r\nHost: localhost\r\nOrigin: app://x\r\nOrigin: https://evil.example.com", 403),
    ] {
        let answer = ask(lines).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expect} ")), "{lines}: {answer}");
    }
}

/// DNS rebinding: a web page whose name resolves to this machine has no key. The registry must not
/// accept the foreign host name either, whether it requires a user or allows anonymous pulls.
#[tokio::test]
async fn a_rebound_name_reads_nothing() {
    let evil = || Some(("host", "evil.example.com".to_owned()));
    let (server, folder, _) = keyed().await;
    let keys = folder.path().join("keys");
    let keys = ("LODE_API_KEYS", keys.to_str().expect("a path"));
    let users = folder.path().join("users");
    let made = server.lode_reading(&["htpasswd", "anna", "--password-stdin"], "secret");
    std::fs::write(&users, made.stdout).expect("a file");
    // Also if the daemon listens on all addresses.
    let server = server.restart_on("0.0.0.0", &[keys]).await;
    for path in ["/v2/_catalog", "/v2/library/m/tags/list", "/api/tags"] {
        assert_eq!(status(&server, Method::GET, path, evil()).await.0, 401, "{path}");
    }
    let mode = [("LODE_REGISTRY_MODE", "anonymous-pull"), ("LODE_REGISTRY_USERS", users.to_str().expect("a path"))];
    let server = server.restart_on("0.0.0.0", &[keys, mode[0], mode[1]]).await;
    assert_eq!(status(&server, Method::GET, "/v2/library/m/tags/list", evil()).await.0, 403, "everybody may pull");
    let private = [("LODE_REGISTRY_MODE", "private"), mode[1]];
    let server = server.restart_on("0.0.0.0", &[keys, private[0], private[1]]).await;
    assert_eq!(status(&server, Method::GET, "/v2/library/m/tags/list", evil()).await.0, 401, "only users may pull");
    let server = server.restart_on("0.0.0.0", &[]).await;
    assert_eq!(status(&server, Method::GET, "/v2/_catalog", evil()).await.0, 403);
}

#[tokio::test]
async fn commands_send_their_key() {
    let (server, _folder, [reader, _, writer]) = keyed().await;
    fails(&server, &["list"], "LODE_API_KEY");
    let modelfile = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(modelfile.path(), format!("FROM {}\n", tiny_model().display())).expect("a file");
    let modelfile = modelfile.path().to_str().expect("a path");
    let command = |key: &str, arguments: &[&str]| {
        let output = server.lode_with(&[("LODE_API_KEY", key)], arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let (made, said) = command(&writer, &["create", "m", "-f", modelfile]);
    assert!(made, "{said}");
    let (listed, said) = command(&reader, &["list"]);
    assert!(listed && said.contains("m:latest"), "{said}");
    let (removed, said) = command(&reader, &["rm", "m"]);
    assert!(!removed && said.contains("`reader`") && said.contains("`write`"), "{said}");
}

#[tokio::test]
async fn strange_hosts_and_pages_are_refused() {
    let server =
        Server::start(&[("LODE_ALLOWED_HOSTS", "lode.example.com"), ("OLLAMA_ORIGINS", "https://*.example.org")]).await;
    for (name, value, expect) in [
        ("host", "lode.example.com", 200),
        ("host", "evil.example.com", 403),
        ("origin", "http://localhost:3000", 200),
        ("origin", "https://a.example.org", 200),
        ("origin", "https://example.net", 403),
        ("origin", "tauri://localhost", 200),
        ("origin", "evil://x", 403),
        ("origin", "chrome-extension://abcdefghijklmnop", 403),
    ] {
        let (status, body) = status(&server, Method::GET, "/api/tags", Some((name, value.to_owned()))).await;
        assert_eq!(status, expect, "{name}: {value}: {body}");
    }
}

#[tokio::test]
async fn browsers_are_told_what_they_may() {
    let server = Server::start(&[]).await;
    let ask = async |origin: &str| {
        let request = server.http.request(Method::OPTIONS, server.url("/api/chat"));
        let request = request.header("origin", origin).header("access-control-request-method", "POST");
        request
            .header("access-control-request-headers", "content-type,x-stainless-lang")
            .send()
            .await
            .expect("an answer")
    };
    let answer = ask("http://localhost:3000").await;
    assert!(answer.status().is_success(), "{}", answer.status());
    let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
    assert_eq!(header("access-control-allow-origin").as_deref(), Some("http://localhost:3000"));
    assert_eq!(header("access-control-allow-headers").as_deref(), Some("content-type,x-stainless-lang"));
    assert!(header("access-control-allow-methods").is_some_and(|methods| methods.contains("DELETE")));
    let answer = ask("https://example.net").await;
    assert!(answer.headers().get("access-control-allow-origin").is_none());
}

/// The daemon may be able to read more than its client, so a path in a request needs the scope
/// `admin`. The command line opens the files itself.
#[tokio::test]
async fn a_path_is_for_who_may_do_everything() {
    let (server, folder, [_, _, writer]) = keyed().await;
    let model = tiny_model();
    let create = async |body: Value| {
        let request = server.http.post(server.url("/api/create")).bearer_auth(&writer).json(&body);
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("text"))
    };
    let (status, told) = create(json!({"model": "other", "path": model})).await;
    assert!(status == 403 && told.contains("needs the scope `admin`"), "{status} {told}");
    let arguments = ["create", "other", "-f", model.to_str().expect("a path")];
    let made = server.lode_with(&[("LODE_API_KEY", &writer)], &arguments);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (status, told) = create(json!({"model": "other", "handed": "0".repeat(32)})).await;
    assert!(status == 400 && told.contains("no files are waiting for this token"), "{status} {told}");
    // The user may follow links that the daemon must not follow.
    let linked = folder.path().join("linked");
    std::fs::create_dir(&linked).expect("a folder");
    for entry in std::fs::read_dir(&model).expect("a folder").map(|entry| entry.expect("an entry")) {
        std::os::unix::fs::symlink(entry.path(), linked.join(entry.file_name())).expect("a link");
    }
    let arguments = ["create", "linked", "-f", linked.to_str().expect("a path")];
    let made = server.lode_with(&[("LODE_API_KEY", &writer)], &arguments);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let server = server.restart(&[]).await;
    let (status, told) = server.call("/api/create", &json!({"model": "m", "path": linked})).await;
    assert!(status == 400 && told["error"].as_str().is_some_and(|e| e.contains("leads out of the folder")), "{told}");
}

/// Returns the number of cached tokens of a fixed prompt, for a key.
async fn cached(server: &Server, key: &str) -> u64 {
    let messages = json!([{"role": "user", "content": "The door of the shed opens with the number 4711."}]);
    let body = json!({"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0});
    let request = server.http.post(server.url("/v1/chat/completions")).bearer_auth(key);
    let answer: Value = request.json(&body).send().await.expect("an answer").json().await.expect("JSON");
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn a_key_learns_nothing_of_prompts_of_others() {
    let (server, folder, [first, second]) = with_keys([("first", "read,run"), ("second", "read,run")]).await;
    let keys = folder.path().join("keys");
    // With a single slot, the second key gets the slot directly after the first.
    let environment =
        [("LODE_API_KEYS", keys.to_str().expect("a path")), ("LODE_NUM_PARALLEL", "1"), ("LODE_SHARED_PREFIXES", "1")];
    let server = server.restart(&environment[..2]).await;
    assert_eq!(cached(&server, &first).await, 0);
    let own = cached(&server, &first).await;
    assert!(own > 10, "{own} tokens of its own prompt");
    assert_eq!(cached(&server, &second).await, 0);
    let server = server.restart(&environment).await;
    assert_eq!((cached(&server, &first).await, cached(&server, &second).await), (0, own));
}

#[tokio::test]
async fn files_are_handed_over_by_the_user_of_the_daemon() {
    const TEST: &str = "guard::files_are_handed_over_by_the_user_of_the_daemon";
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = folder.path().join("files.sock");
    let path = path.to_str().expect("a path");
    let mut server = Server::start(&[("LODE_SOCKET", path)]).await;
    for (environment, mode) in [(vec![], 0o600), (vec![("LODE_SOCKET_SHARED", "1")], 0o666)] {
        server = server.restart(&[environment, vec![("LODE_SOCKET", path)]].concat()).await;
        let found = std::fs::metadata(path).expect("a socket").permissions().mode();
        assert_eq!(found & 0o777, mode, "{found:o}");
        let connect =
            "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0) && connect(S, sockaddr_un($ARGV[0])) || die \"$!\"";
        let mut stranger = Command::new("perl");
        // The user `nobody`.
        let tried = stranger.args(["-e", connect, path]).current_dir("/").uid(65534).gid(65534).output();
        let Ok(tried) = tried else { return skip(TEST, "another user's program needs perl and root") };
        let said = String::from_utf8_lossy(&tried.stderr);
        assert_eq!(tried.status.success(), mode == 0o666, "{mode:o}: {said}");
        assert!(tried.status.success() || said.contains("Permission denied"), "{said}");
    }
    server.create("tiny", &tiny_model()).await;
}
