//! Who may speak to a daemon, and what they may do.

use reqwest::Method;
use serde_json::{Value, json};

use crate::maintenance::fails;
use crate::server::Server;
use crate::support::tiny_model;

/// A daemon with three keys: `(server, reader, runner, writer)`.
async fn keyed() -> (Server, tempfile::TempDir, [String; 3]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Server::start(&[]).await;
    let (mut file, mut keys) = (String::new(), Vec::new());
    for (name, scopes) in [("reader", "read"), ("runner", "read,run"), ("writer", "read,write")] {
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
    (server, folder, keys.try_into().expect("three"))
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
