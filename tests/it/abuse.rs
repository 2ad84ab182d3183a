//! Clients that idle, do not read, do not send, or send requests that need much memory. Other
//! clients are served meanwhile.
//!
//! `scripts/campaign abuse` runs a larger variant, and asserts the latency and memory limits.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::server::Server;
use crate::support::{allow_files, say, tiny_model};
use crate::synthetic::llama;

/// The number of clients of each kind.
#[derive(Clone, Copy, Debug)]
struct Scale {
    idle: usize,
    slow_readers: usize,
    slow_writers: usize,
    bombs: usize,
    templates: usize,
    /// The number of requests of well-behaved clients.
    asked: usize,
    /// Whether latency and memory are asserted; only if no other test runs at the same time.
    is_campaign: bool,
}

impl Scale {
    fn chosen() -> Self {
        if std::env::var_os("LODE_CAMPAIGN_ABUSE").is_some() {
            return Self {
                idle: 10_000,
                slow_readers: 1000,
                slow_writers: 1000,
                bombs: 50,
                templates: 50,
                asked: 1000,
                is_campaign: true,
            };
        }
        Self { idle: 400, slow_readers: 100, slow_writers: 100, bombs: 5, templates: 3, asked: 50, is_campaign: false }
    }
}

/// Sends the beginning of a request and nothing more. The daemon may close the connection at any
/// time.
async fn begin(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).await.expect("a connection");
    let _ = stream.write_all(text.as_bytes()).await;
    stream
}

fn post(path: &str, length: usize, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Returns the kilobytes of a line in the daemon's `/proc/PID/status`.
fn memory(server: &Server, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a process");
    let found = status.lines().find_map(|text| text.strip_prefix(line)).expect("a line");
    found.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one case after the other")]
async fn others_are_served_meanwhile() {
    let scale = Scale::chosen();
    allow_files();
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    // Larger than the socket buffers, so that a client that does not read blocks the daemon's
    // writes.
    let large = llama(4, 512);
    server.create("large", large.path()).await;
    let save = json!({"models": ["large"]}).to_string();
    let mut held = Vec::new();
    for number in 0..scale.idle {
        let half = if number % 2 == 0 { "" } else { "GET /api/tags HTTP/1.1\r\nhost: local" };
        held.push(begin(&server, half).await);
    }
    for _ in 0..scale.slow_readers {
        held.push(begin(&server, &post("/api/save", save.len(), &save)).await);
    }
    for _ in 0..scale.slow_writers {
        held.push(begin(&server, &post("/api/chat", 16_000_000, "{\"model\": \"tiny\", \"messages\": [")).await);
    }
    let bomb = format!("{{\"model\":\"tiny\",\"images\":[{}0]}}", "[],".repeat(5_000_000));
    let bombs = futures_util::future::join_all((0..scale.bombs).map(|_| async {
        let answer = server.http.post(server.url("/api/generate")).body(bomb.clone()).send().await;
        answer.map_or(413, |answer| answer.status().as_u16())
    }));
    let grows = "{% set n = namespace(x='a' * 1000000) %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
    let request = json!({"model": "tiny", "prompt": "x", "template": grows, "stream": false});
    let templates = futures_util::future::join_all(
        (0..scale.templates).map(|_| async { server.post("/api/generate", &request).await.status().as_u16() }),
    );
    let asked = async {
        let mut times = Vec::new();
        for number in 0..scale.asked {
            let path = ["/api/tags", "/healthz", "/v2/library/tiny/tags/list"][number % 3];
            let begin = Instant::now();
            // Opens a new connection for each request, which is the hardest case.
            let client = reqwest::Client::builder().no_proxy().build().expect("a client");
            let answer = client.get(server.url(path)).send().await.expect("an answer");
            assert_eq!(answer.status(), 200, "{path}");
            answer.bytes().await.expect("all of it");
            times.push(begin.elapsed());
        }
        times
    };
    let (statuses, rendered, mut times) = tokio::join!(bombs, templates, asked);
    assert!(rendered.iter().all(|status| *status == 400), "{rendered:?}");
    // 413: too much memory for one request. 503: too much for all requests together.
    assert!(statuses.iter().all(|status| [413, 503].contains(status)), "{statuses:?}");
    times.sort_unstable();
    let (median, late) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    let most = memory(&server, "VmHWM:") / 1024;
    drop(held);
    // The slots of the slow clients are free again: a save whose client reads completes.
    let freed = Instant::now();
    let saved = server.post("/api/save", &json!({"models": ["tiny"]})).await;
    assert!(saved.bytes().await.expect("all of it").len() > 10_000);
    let told = format!(
        "{scale:?}: median {median:?}, p99 {late:?}, at most {most} MiB, {} MiB afterwards, turns free after {:?}",
        memory(&server, "VmRSS:") / 1024,
        freed.elapsed()
    );
    say(&told);
    assert!(most < 1024, "{told}");
    if scale.is_campaign {
        assert!(late < Duration::from_secs(1) && freed.elapsed() < Duration::from_mins(1), "{told}");
    }
}
