//! Clients that others wrote, unmodified.

use crate::server::Server;
use crate::support::{root, skip, tiny_model};

#[tokio::test]
async fn the_ollama_client_for_python() {
    const TEST: &str = "clients::the_ollama_client_for_python";
    let Some(python) = std::env::var_os("LODE_TEST_PYTHON") else {
        return skip(TEST, "LODE_TEST_PYTHON names no Python with the `ollama` package; scripts/test makes one");
    };
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let script = root().join("tests/clients/ollama_client.py");
    let output = std::process::Command::new(python)
        .args([script.as_os_str(), server.address.as_ref(), "tiny".as_ref()])
        .env_remove("OLLAMA_HOST")
        .output()
        .expect("Python runs");
    let say = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", say(&output.stdout), say(&output.stderr));
}
