//! Limits on a single client's use of the daemon: connections, memory, time, and interference with
//! other clients.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::guard::keyed;
use crate::server::Server;
use crate::support::tiny_model;

/// Returns the daemon's peak resident memory in bytes.
fn most_memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[tokio::test]
async fn half_sent_requests_do_not_keep_others_out() {
    let server = Server::start_under(&["prlimit", "--nofile=256:256"], &[]).await;
    let mut halves = Vec::new();
    for _ in 0..330 {
        let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
        // The daemon may have closed the connection already.
        let _ = stream.write_all(b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\n").await;
        halves.push(stream);
    }
    for path in ["/healthz", "/readyz", "/api/tags"] {
        let answer = server.http.get(server.url(path)).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
    }
    server.create("tiny", &tiny_model()).await;
}

#[tokio::test]
async fn documents_are_read_in_bounded_memory() {
    let server = Server::start(&[]).await;
    let before = most_memory(&server);
    let many = |count: usize| format!(r#"{{"model":"m","prompt":"p","images":[{}[]]}}"#, "[],".repeat(count));
    let long = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(49 << 20));
    for (body, expect) in [
        (many(5_000_000), "values"),
        (many(17_000_000), "longer than"),
        (long, "longer than"),
        (format!(r#"{{"model":"m","format":{{"a":[{}0]}}}}"#, "0,".repeat(4_000_000)), "values"),
    ] {
        let answer = server.http.post(server.url("/api/generate")).body(body).send().await.expect("an answer");
        assert_eq!(answer.status(), 413);
        let told: Value = answer.json().await.expect("JSON");
        assert!(told["error"].as_str().is_some_and(|error| error.contains(expect)), "{told}");
    }
    let most = most_memory(&server) - before;
    assert!(most < 200 << 20, "{most} bytes were taken for requests that were refused");
    // The same limits apply to the other APIs.
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let answer = server.http.post(server.url(path)).body(many(5_000_000)).send().await.expect("an answer");
        assert_eq!(answer.status(), 413, "{path}");
        assert!(answer.json::<Value>().await.expect("JSON")["error"]["message"].is_string(), "{path}");
    }
}

#[tokio::test]
async fn one_digest_may_be_sent_by_many_at_once() {
    let server = Server::start(&[]).await;
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let digest = content::Digest::of(&bytes);
    let send = async || {
        let pieces: Vec<_> = bytes.chunks(100_000).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        // Yields between the pieces, so that all uploads are in progress at the same time.
        let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces).then(async |piece| {
            tokio::task::yield_now().await;
            piece
        }));
        let url = server.url(&format!("/api/blobs/{digest}"));
        server.http.post(url).body(body).send().await.expect("an answer").status().as_u16()
    };
    let statuses = futures_util::future::join_all((0..8).map(|_| send())).await;
    assert!(statuses.iter().all(|status| [200, 201].contains(status)), "{statuses:?}");

    let upload = async || {
        let begun = server.http.post(server.url("/v2/library/some/blobs/uploads/")).send().await.expect("an answer");
        assert_eq!(begun.status(), 202);
        let location = begun.headers()["location"].to_str().expect("text").to_owned();
        let location = if location.starts_with('/') { server.url(&location) } else { location };
        let ended = if location.contains('?') { '&' } else { '?' };
        let put = server.http.put(format!("{location}{ended}digest={digest}")).body(bytes.clone());
        put.send().await.expect("an answer").status().as_u16()
    };
    let statuses = futures_util::future::join_all((0..8).map(|_| upload())).await;
    assert_eq!(statuses, [201; 8]);
    let ingests = std::fs::read_dir(server.home().join("ingest")).expect("a folder").count();
    assert_eq!(ingests, 0, "nothing is left of those that came second");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let server = Server::start(&[]).await;
    let digest = content::Digest::of(b"something else");
    let ingests = || std::fs::read_dir(server.home().join("ingest")).expect("a folder").count();
    for (path, length) in [
        (format!("/api/blobs/{digest}"), "content-length: 1000000\r\n\r\n"),
        ("/api/lode/upload".to_owned(), "content-length: 1000000\r\n\r\n"),
        ("/api/lode/upload".to_owned(), "transfer-encoding: chunked\r\n\r\nf4240\r\n"),
    ] {
        let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{length}");
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream.write_all(&vec![7; 100_000]).await.expect("sent");
        until(|| ingests() == 1).await;
        drop(stream);
        until(|| ingests() == 0).await;
    }
    let usage = server.http.get(server.url("/api/lode/du")).send().await.expect("an answer");
    let usage: Value = usage.json().await.expect("JSON");
    assert_eq!(usage["blobs"], 0, "nothing became a blob");
}

async fn until(holds: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not come to be");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns every file of a store with its modification time.
fn files(folder: &std::path::Path) -> Vec<(std::path::PathBuf, std::time::SystemTime)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let metadata = entry.metadata().expect("metadata");
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((entry.path(), metadata.modified().expect("a time")));
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn questions_write_nothing() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let sent = b"a blob that no model has";
    let digest = content::Digest::of(sent);
    let url = server.url(&format!("/api/blobs/{digest}"));
    assert_eq!(server.http.post(&url).body(sent.to_vec()).send().await.expect("an answer").status(), 201);
    // The index is not compared, because it also writes in the background.
    let leases = || (files(&server.home().join("leases")), files(&server.home().join("links")));
    let before = leases();
    for path in [
        format!("/api/blobs/{digest}"),
        format!("/v2/library/tiny/blobs/{digest}"),
        "/v2/library/tiny/manifests/latest".to_owned(),
    ] {
        let answer = server.http.request(Method::HEAD, server.url(&path)).send().await.expect("an answer");
        assert!([200, 404].contains(&answer.status().as_u16()), "{path}: {}", answer.status());
    }
    assert_eq!(leases(), before);
    // A client that has seen the 200 will not send the blob again. The daemon keeps the blob,
    // although no lease on disk protects it.
    std::fs::remove_dir_all(server.home().join("leases")).expect("removed");
    std::fs::create_dir(server.home().join("leases")).expect("rebuilding it");
    server.ask("/api/lode/gc", &json!({})).await;
    assert_eq!(server.http.head(&url).send().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn who_may_only_look_does_not_make_the_daemon_ask_others() {
    let (server, _folder, [reader, _, writer]) = keyed().await;
    let plan = async |key: &str| {
        let body = json!({"model": "localhost:1/library/absent", "insecure": true});
        let request = server.http.post(server.url("/api/lode/plan")).bearer_auth(key).json(&body);
        request.send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(plan(&reader).await, 403);
    assert_eq!(plan(&writer).await, 502, "nobody answers there");
}

#[tokio::test]
async fn a_model_is_not_unloaded_under_another_request() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let body = json!({"model": "tiny", "prompt": "a", "raw": true, "options": {"num_predict": 3000, "temperature": 0}});
    let mut stream = server.post("/api/generate", &body).await.bytes_stream();
    stream.next().await.expect("a line").expect("bytes");
    let unload = json!({"model": "tiny", "keep_alive": 0, "stream": false});
    let told = server.ask("/api/generate", &unload).await;
    assert_eq!(told["done_reason"], "unload");
    let mut last = Vec::new();
    while let Some(piece) = stream.next().await {
        last = piece.expect("the stream goes on to its end").to_vec();
    }
    let text = String::from_utf8_lossy(&last);
    let end: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(end["done"], true, "{end}");
    let loaded = async || {
        let answer = server.http.get(server.url("/api/ps")).send().await.expect("an answer");
        answer.json::<Value>().await.expect("JSON")["models"].as_array().map_or(0, Vec::len)
    };
    let begin = std::time::Instant::now();
    while loaded().await > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is unloaded once nobody uses it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn unfinished_uploads_have_an_end() {
    let server = Server::start(&[]).await;
    let begin =
        async || server.http.post(server.url("/v2/library/some/blobs/uploads/")).send().await.expect("an answer");
    let mut places = Vec::new();
    let refused = loop {
        let answer = begin().await;
        if answer.status() != 202 {
            break answer;
        }
        places.push(answer.headers()["location"].to_str().expect("a place").to_owned());
        assert!(places.len() <= 512, "there is no end");
    };
    assert_eq!((places.len(), refused.status().as_u16()), (512, 429));
    let told: Value = refused.json().await.expect("JSON");
    assert_eq!(told["errors"][0]["code"], "TOOMANYREQUESTS", "{told}");
    let cancelled = server.http.delete(server.url(&places[0])).send().await.expect("an answer");
    assert_eq!(cancelled.status(), 204);
    assert_eq!(begin().await.status(), 202, "there is room again");
}
