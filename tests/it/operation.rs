//! Operation of a daemon: health, metrics, logs, service managers, and the doctor.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::Command;

use serde_json::{Value, json};

use crate::maintenance::done;
use crate::server::{LODE, Server};
use crate::support::tiny_model;

#[tokio::test]
async fn what_happens_is_counted() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    server.ask("/api/show", &json!({"model": "m"})).await;
    assert_eq!(server.call("/api/show", &json!({"model": "nobody"})).await.0, 404);
    let counted = server.metrics().await;
    let shows = |status: &str| {
        let name = format!(r#"lode_requests_total{{route="/api/show",method="POST",status="{status}"}}"#);
        counted.get(&name).copied()
    };
    assert_eq!((shows("200"), shows("404")), (Some(1.0), Some(1.0)), "{counted:?}");
    assert_eq!(counted.get(r#"lode_request_seconds_count{route="/api/show"}"#), Some(&2.0));
    assert!(counted["lode_stored_bytes"] > 0.0 && counted["lode_free_bytes"] > 0.0);
    assert!(counted["lode_shared_bytes"] < 1.0);
    let asked = json!({"model": "m", "prompt": "a b c", "raw": true, "stream": false, "options": {"num_predict": 3}});
    let answer = server.ask("/api/generate", &asked).await;
    let counted = server.metrics().await;
    let tokens = |kind: &str| counted[&format!(r#"lode_tokens_total{{model="m:latest",kind="{kind}"}}"#)].to_string();
    assert_eq!(tokens("prompt"), answer["prompt_eval_count"].to_string());
    assert_eq!(tokens("generated"), answer["eval_count"].to_string());
    let is = |name: &str, value: f64| assert_eq!(counted.get(name), Some(&value), "{name} of {counted:?}");
    is("lode_loads_total", 1.0);
    is("lode_load_seconds_count", 1.0);
    is("lode_loaded_models", 1.0);
    is("lode_active_requests", 0.0);
    is(r#"lode_first_token_seconds_count{model="m:latest"}"#, 1.0);
    let ended = counted.iter().filter(|(name, _)| name.starts_with("lode_generations_total")).map(|(_, count)| count);
    assert_eq!(ended.sum::<f64>().to_string(), "1", "{counted:?}");
    // A generation that fails before its first token is counted too.
    let refused = json!({"model": "m", "prompt": "x", "raw": true, "stream": false, "format": {"type": "nonsense"}});
    let (status, answer) = server.call("/api/generate", &refused).await;
    assert_eq!(status, 400, "{answer}");
    let counted = server.metrics().await;
    let failed = counted.get(r#"lode_generations_total{model="m:latest",end="error"}"#);
    assert_eq!(failed, Some(&1.0), "{counted:?}");
    assert_eq!(counted.get(r#"lode_first_token_seconds_count{model="m:latest"}"#), Some(&1.0));
    done(&server, &["fsck"]);
    assert!(server.metrics().await["lode_verified_bytes_total"] > 0.0);
}

#[tokio::test]
async fn readiness_says_what_is_in_the_way() {
    let server = Server::start(&[]).await;
    let ask = async |server: &Server, path: &str| {
        let response = server.http.get(server.url(path)).send().await.expect("an answer");
        (response.status().as_u16(), response.text().await.expect("text"))
    };
    assert_eq!(ask(&server, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(ask(&server, "/readyz").await, (200, r#"{"ready":true,"problems":[]}"#.to_owned()));
    let server = server.restart(&[("LODE_RUNNER", "/nowhere/lode-runner")]).await;
    assert_eq!(ask(&server, "/healthz").await.0, 200);
    let (status, text) = ask(&server, "/readyz").await;
    assert!(status == 503 && text.contains("/nowhere/lode-runner"), "{status} {text}");
}

#[tokio::test]
async fn logs_are_json_where_that_is_wanted() {
    let server = Server::start(&[("LODE_LOG_FORMAT", "json"), ("LODE_LOG", "lode=debug")]).await;
    assert_eq!(server.call("/api/show", &json!({"model": "nobody"})).await.0, 404);
    let log = server.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let answered = lines.iter().find(|line| line["message"] == "answered" && line["span"]["path"] == "/api/show");
    assert_eq!(answered.expect("a line for the request")["status"], 404, "{log}");
}

#[tokio::test]
async fn a_service_manager_hands_its_socket_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let notify = folder.path().join("notify");
    let told = std::os::unix::net::UnixDatagram::bind(&notify).expect("a socket");
    told.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a socket");
    // The shell passes the socket as file descriptor 3, and then becomes the daemon by `exec`, so
    // that `LISTEN_PID` is right.
    let mut daemon = Command::new("bash")
        .args(["-c", "exec 3<&0; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" serve </dev/null", &**LODE])
        .stdin(OwnedFd::from(listener))
        .env("LODE_HOME", folder.path().join("store"))
        .env("LODE_HOST", address.to_string())
        .env("NOTIFY_SOCKET", &notify)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("bash");
    let mut buffer = [0; 256];
    let size = told.recv(&mut buffer).expect("word from the daemon");
    assert!(buffer[..size].starts_with(b"READY=1"), "{}", String::from_utf8_lossy(&buffer[..size]));
    let answer = crate::server::http().build().expect("a client").get(format!("http://{address}/healthz")).send().await;
    assert_eq!(answer.expect("an answer").text().await.expect("text"), "ok\n");
    let ended = Command::new("kill").arg(daemon.id().to_string()).status().expect("kill");
    assert!(ended.success());
    assert!(daemon.wait().expect("it ends").success());
}

#[tokio::test]
async fn the_doctor_finds_what_is_wrong() {
    let server = Server::start(&[]).await;
    let findings = |server: &Server, environment: &[(&str, &str)]| -> (bool, BTreeMap<String, Value>) {
        let output = server.lode_with(environment, &["doctor", "--format", "json"]);
        let findings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a document");
        let named = |finding: Value| (finding["check"].as_str().expect("a name").to_owned(), finding);
        (output.status.success(), findings.into_iter().map(named).collect())
    };
    let (well, found) = findings(&server, &[]);
    assert!(well, "{found:?}");
    assert!(found["daemon"]["found"].as_str().is_some_and(|text| text.contains(&server.address)), "{found:?}");
    let device = found["device"]["found"].as_str().expect("text");
    assert!(device.contains("LODE_DEVICE is `auto`: models are computed on "), "{device}");
    let (well, asked) = findings(&server, &[("LODE_DEVICE", "cuda:99")]);
    assert!(!well && asked["device"]["found"].to_string().contains("which does not exist"), "{asked:?}");
    let pid = format!("process {} ", server.pid());
    assert!(found["store lock"]["found"].as_str().is_some_and(|text| text.contains(&pid)), "{found:?}");

    std::fs::write(server.home().join("registries.toml"), "[registry.x]\nspeed = 1\n").expect("a file");
    let environment =
        [("LODE_RUNNER", "/nowhere/lode-runner"), ("HTTPS_PROXY", "http://me:secret@p:1"), ("NO_PROXY", "")];
    let (well, found) = findings(&server, &environment);
    assert!(!well);
    for (check, grade, says) in [
        ("runner", "failure", "/nowhere/lode-runner"),
        ("registries", "failure", "speed"),
        ("proxies", "warning", "…@p:1"),
    ] {
        let finding = &found[check];
        assert_eq!(finding["grade"], grade, "{finding}");
        assert!(finding["found"].as_str().is_some_and(|text| text.contains(says)), "{finding}");
        assert!(finding["remedy"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
    }
    assert!(!found["proxies"].to_string().contains("secret"));
}
