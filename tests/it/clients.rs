//! Unmodified third-party clients.

mod agents;
pub(crate) mod scripted;

use std::ffi::OsStr;
use std::process::Command;

use serde_json::json;

use crate::pictures::seeing_model;
use crate::server::Server;
use crate::support::{fixtures, root, skip, tiny_model};

/// The chat template of a model that thinks and calls tools.
const TALKER: &str = "{%- for message in messages %}[{{ message.role }}]{{ message.content }}\
    {% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}\
    {% if tools %}{{ tools | length }}<tool_call></tool_call>{% endif %}[a]{% if enable_thinking %}<think>{% endif %}";

/// Runs a client's session against a daemon with the tiny model, and with a variant of it that
/// thinks and calls tools.
async fn session(program: &OsStr, arguments: impl AsyncFnOnce(&Server) -> Vec<std::ffi::OsString>) {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let talker = json!({"model": "talker", "from": "tiny", "template": TALKER, "stream": false});
    assert_eq!(server.ask("/api/create", &talker).await["status"], "success");
    let mut client = Command::new(program);
    client.args(arguments(&server).await).env_remove("OLLAMA_HOST");
    if let Some(zoo) = fixtures("clients: pictures", "zoo2026") {
        server.create("seer", seeing_model(&zoo).path()).await;
        client.env("LODE_SEEING_MODEL", "seer").env("LODE_PICTURE", root().join("fuzz/seeds/pictures/photo.jpg"));
    }
    let output = client.output().expect("the client runs");
    let say = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", say(&output.stdout), say(&output.stderr));
    assert_eq!(say(&output.stdout).trim(), "ok", "a session ends with its last line");
}

#[tokio::test]
async fn the_ollama_client_for_python() {
    const TEST: &str = "clients::the_ollama_client_for_python";
    let Some(python) = std::env::var_os("LODE_TEST_PYTHON") else {
        return skip(TEST, "LODE_TEST_PYTHON names no Python with the `ollama` package; scripts/test makes one");
    };
    let script = root().join("tests/clients/ollama_client.py");
    session(&python, async |server| {
        vec![script.into(), server.address.clone().into(), "tiny".into(), "talker".into(), tiny_model().into()]
    })
    .await;
}

#[tokio::test]
async fn the_ollama_client_for_node() {
    const TEST: &str = "clients::the_ollama_client_for_node";
    let Some(packages) = std::env::var_os("LODE_TEST_NPM") else {
        return skip(TEST, "LODE_TEST_NPM names no folder with the npm package `ollama`; scripts/test makes one");
    };
    let script = root().join("tests/clients/ollama_client.mjs");
    session(OsStr::new("node"), async |server| {
        vec![script.into(), packages, server.address.clone().into(), "tiny".into(), "talker".into()]
    })
    .await;
}

/// Runs the session of a Python client, if its package is installed.
async fn python(test: &str, variable: &str, package: &str, script: &str) {
    let Some(python) = std::env::var_os(variable) else {
        return skip(test, &format!("{variable} names no Python; scripts/test makes one"));
    };
    let found = Command::new(&python).args(["-c", &format!("import {package}")]).output().expect("Python runs");
    if !found.status.success() {
        return skip(test, &format!("the package `{package}` is not installed; scripts/test does it"));
    }
    let script = root().join("tests/clients").join(script);
    session(&python, async |server| vec![script.into(), server.address.clone().into(), "tiny".into(), "talker".into()])
        .await;
}

#[tokio::test]
async fn the_openai_client_for_python() {
    python("clients::the_openai_client_for_python", "LODE_TEST_PYTHON", "openai", "openai_client.py").await;
}

#[tokio::test]
async fn the_anthropic_client_for_python() {
    python("clients::the_anthropic_client_for_python", "LODE_TEST_PYTHON", "anthropic", "anthropic_client.py").await;
}

#[tokio::test]
async fn litellm() {
    python("clients::litellm", "LODE_TEST_LITELLM", "litellm", "litellm_client.py").await;
}

#[tokio::test]
async fn langchain_ollama() {
    python("clients::langchain_ollama", "LODE_TEST_PYTHON", "langchain_ollama", "langchain_client.py").await;
}
