//! Collections while models are created and removed: no needed blob is removed, and no unneeded
//! blob remains.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::peers::DEFAULT_HOST;
use crate::server::Server;
use crate::stored;
use crate::support::{tiny_model, variant};
use crate::synthetic::fine_tune;

use super::TUNED;

/// Returns the duration of the test; `LODE_TEST_GC_SECONDS` overrides it.
fn span() -> Duration {
    let seconds = std::env::var("LODE_TEST_GC_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

async fn collect(server: &Server) {
    let (status, answer) = server.call("/api/lode/gc", &json!({})).await;
    assert_eq!(status, 200, "{answer}");
}

/// Asserts that all blobs of all models exist.
async fn assert_complete(server: &Server) {
    let here = stored::blobs(&server.home());
    for name in server.names().await {
        let full = if name.contains("127.0.0.1") { name.clone() } else { format!("{DEFAULT_HOST}/library/{name}") };
        let (repository, tag) = full.rsplit_once(':').expect("a whole name");
        let manifest = stored::manifest(&server.home(), repository, tag);
        let missing = manifest.missing(&here);
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
    }
}

#[tokio::test]
async fn never_takes_what_is_needed() {
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    source.create("tuned", fine_tune(&TUNED).path()).await;
    let server = Server::start(&[]).await;
    server.create("kept", &tiny_model()).await;
    let expected = server.says("kept").await;
    let end = Instant::now() + span();
    let on = || Instant::now() < end;

    let pulls = async {
        while on() {
            for name in ["tuned", "tiny"] {
                let name = format!("{}/library/{name}", source.address);
                server.pull(&name).await;
                server.says(&name).await;
                server.remove(&name).await;
            }
        }
    };
    let creates = async {
        for seed in (1..=u8::MAX).cycle() {
            let other = variant(seed);
            server.create("made", other.path()).await;
            server.remove("made").await;
            if !on() {
                break;
            }
        }
    };
    let pushes = async {
        for round in 0_u64.. {
            let name = format!("{}/library/pushed", server.address);
            source.push(if round % 2 == 0 { "tuned" } else { "tiny" }, &name).await;
            server.remove("pushed").await;
            if !on() {
                break;
            }
        }
    };
    let collections = async {
        while on() {
            collect(&server).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    let generations = async {
        while on() {
            let again: Value = server.says("kept").await;
            assert_eq!(again, expected);
        }
    };
    tokio::join!(pulls, creates, pushes, collections, generations);

    assert_complete(&server).await;
    for name in server.names().await {
        server.says(&name).await;
        server.remove(&name).await;
    }
    collect(&server).await;
    let left = stored::blobs(&server.home());
    assert!(left.is_empty(), "there is no model, and {} blobs are left: {left:?}", left.len());
    assert!(stored::tags(&server.home()).is_empty());
}
