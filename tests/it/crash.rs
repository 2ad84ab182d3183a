//! Kills of the daemon at every step of a commit and at random moments. No half-written content is
//! visible, no acknowledged content is missing, and the next command works.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::Server;
use crate::stored;
use crate::support::{list, tiny_model, variant};

async fn names(server: &Server) -> Vec<String> {
    let answer = server.http.get(server.url("/api/tags")).send().await.expect("the daemon answers");
    let tags: Value = answer.json().await.expect("JSON");
    list(&tags["models"]).iter().map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
}

async fn generates(server: &Server, model: &str) {
    let request = json!({"model": model, "prompt": "x", "raw": true, "stream": false, "options": {"num_predict": 2}});
    server.ask("/api/generate", &request).await;
}

/// The points that a create passes that leaves the tensors where they are.
fn adoption() -> impl Iterator<Item = (store::CrashPoint, bool)> {
    store::CrashPoint::CREATE.into_iter().chain(store::CrashPoint::ADOPT).map(|point| (point, true))
}

#[tokio::test]
async fn at_every_step_of_a_commit() {
    let other = variant(1);
    for (point, in_place) in store::CrashPoint::CREATE.map(|point| (point, false)).into_iter().chain(adoption()) {
        let mut server = Server::start(&[]).await;
        server.create("before", &tiny_model()).await;
        server = server.restart(&[("LODE_CRASH_AT", point.name())]).await;
        let request = json!({"model": "after", "path": other.path(), "in_place": in_place});
        // The connection breaks when the daemon dies. A client that disconnected earlier would
        // cancel the create.
        if let Ok(response) = server.http.post(server.url("/api/create")).json(&request).send().await {
            let _ = response.bytes().await;
        }
        assert!(server.ended(Duration::from_mins(1)).await, "{}: the daemon was to be killed", point.name());

        let server = server.restart(&[]).await;
        stored::blobs(&server.home());
        let names = names(&server).await;
        assert!(names.contains(&"before:latest".to_owned()), "{}: {names:?}", point.name());
        if names.contains(&"after:latest".to_owned()) {
            generates(&server, "after").await;
        }
        let lines = server.lines("/api/create", &request).await;
        assert_eq!(lines.last().expect("a line")["status"], "success", "{lines:?}");
        generates(&server, "after").await;
        generates(&server, "before").await;
    }
}

/// Returns moments spread over the duration of a create and a generation. The sequence is the same
/// in each run.
fn moments(count: u64) -> impl Iterator<Item = Duration> {
    (0..count).map(|i| Duration::from_millis(1 + (i * 37) % 90))
}

#[tokio::test]
async fn at_random_moments_of_create_and_generate() {
    let mut server = Server::start(&[]).await;
    server.create("kept", &tiny_model()).await;
    // Each round takes a while; `LODE_TEST_KILLS` sets another number.
    let count = std::env::var("LODE_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    for (round, moment) in (1u8..).zip(moments(count)) {
        let name = format!("m{round}");
        let other = variant(round);
        let create = json!({"model": name, "path": other.path()});
        let generate =
            json!({"model": "kept", "prompt": "x", "raw": true, "options": {"num_predict": 200, "temperature": 1}});
        let send = |path: &str, body: Value| {
            let request = server.http.post(server.url(path)).json(&body);
            tokio::spawn(async move {
                if let Ok(response) = request.send().await {
                    // Waits until the daemon is gone.
                    let _ = response.bytes().await;
                }
            })
        };
        let tasks = [send("/api/create", create), send("/api/generate", generate)];
        tokio::time::sleep(moment).await;
        server = server.restart(&[]).await;
        for task in tasks {
            task.await.expect("no panic");
        }
        assert!(names(&server).await.contains(&"kept:latest".to_owned()), "round {round}");
    }
    assert!(!stored::blobs(&server.home()).is_empty());
    for name in names(&server).await {
        generates(&server, &name).await;
    }
}

#[tokio::test]
async fn a_killed_daemon_takes_its_runners_along() {
    let mut server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    generates(&server, "m").await;
    let pid = server.runner_pid().await;
    server.kill();
    let alive = || std::path::Path::new(&format!("/proc/{pid}/stat")).exists();
    for _ in 0..500 {
        if !alive() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the runner lives on");
}
