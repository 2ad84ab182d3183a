//! Blobs: every way to upload one, with both digest algorithms; mounts, deletes, wrong digests.

use content::Algorithm;
use reqwest::Method;

use super::client::{Blob, Registry, reply};
use super::upload::{self, LastChunk, Order, Way, begin, created, push};

const ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Sha512];

/// Large enough for three chunks, the last of them shorter.
const THREE_CHUNKS: usize = 3 * 1024 - 5;

/// Checks that a blob can be read, deletes it, and checks that it is gone at once.
async fn read_and_delete(registry: &Registry, repository: &str, blob: &Blob) {
    read(registry, repository, blob).await;
    delete(registry, repository, blob).await;
}

async fn read(registry: &Registry, repository: &str, blob: &Blob) {
    let (path, size) = (format!("/v2/{repository}/blobs/{}", blob.digest), blob.bytes.len().to_string());
    let digest = blob.digest.to_string();
    for method in [Method::HEAD, Method::GET] {
        let body = if method == Method::HEAD { &[] } else { blob.bytes.as_slice() };
        let answer = reply(registry.ask(method, &path)).await.is(200).holds(body);
        let answer = answer.has("Content-Length", &size).has("Docker-Content-Digest", &digest);
        answer.has("Content-Type", "application/octet-stream");
    }
}

async fn delete(registry: &Registry, repository: &str, blob: &Blob) {
    let path = format!("/v2/{repository}/blobs/{}", blob.digest);
    registry.delete(&path).await.is(202);
    registry.head(&path).await.is(404);
    registry.get(&path).await.is(404).refuses(&["BLOB_UNKNOWN"]);
}

async fn mount(registry: &Registry, to: &str, blob: &Blob, from: Option<&str>) -> super::client::Reply {
    let from = from.map(|from| format!("&from={from}")).unwrap_or_default();
    registry.post(&format!("/v2/{to}/blobs/uploads/?mount={}{from}", blob.digest)).await
}

#[tokio::test]
async fn a_blob_that_nobody_pushed_is_missing() {
    let registry = Registry::start().await;
    for algorithm in ALGORITHMS {
        let blob = Blob::sample(algorithm, "missing", 512);
        let path = format!("/v2/conformance/missing/blobs/{}", blob.digest);
        registry.get(&path).await.is(404).refuses(&["BLOB_UNKNOWN", "NAME_UNKNOWN"]);
        registry.head(&path).await.is(404).holds(b"");
        registry.delete(&path).await.is(404).refuses(&["BLOB_UNKNOWN", "NAME_UNKNOWN"]);
    }
}

#[tokio::test]
async fn every_way_to_upload() {
    let registry = Registry::start().await;
    let chunked = |last| Way::Chunked(last, Order::Right);
    for algorithm in ALGORITHMS {
        for (way, size) in [
            (Way::PostOnly, 512),
            (Way::PostPut, 512),
            (Way::Stream, 512),
            (chunked(LastChunk::InPatch), 512),
            (chunked(LastChunk::InPut), 512),
            (chunked(LastChunk::InPatch), THREE_CHUNKS),
            (chunked(LastChunk::InPut), THREE_CHUNKS),
            // Larger than any buffer on the path.
            (Way::PostPut, 3 << 20),
            (Way::Stream, 3 << 20),
        ] {
            let blob = Blob::sample(algorithm, &format!("{way:?} {size}"), size);
            push(&registry, "conformance/ways", &blob, way).await;
            read_and_delete(&registry, "conformance/ways", &blob).await;
        }
    }
}

#[tokio::test]
async fn chunks_out_of_order() {
    let registry = Registry::start().await;
    for algorithm in ALGORITHMS {
        for last in [LastChunk::InPatch, LastChunk::InPut] {
            let blob = Blob::sample(algorithm, &format!("disorder {last:?}"), THREE_CHUNKS);
            push(&registry, "conformance/disorder", &blob, Way::Chunked(last, Order::WrongFirst)).await;
            read_and_delete(&registry, "conformance/disorder", &blob).await;
        }
    }
}

#[tokio::test]
async fn well_known_bytes() {
    let registry = Registry::start().await;
    for algorithm in ALGORITHMS {
        for bytes in [b"{}".as_slice(), b""] {
            for way in Way::ALL {
                let blob = Blob::new(algorithm, bytes);
                push(&registry, "conformance/known", &blob, way).await;
                read_and_delete(&registry, "conformance/known", &blob).await;
            }
        }
    }
}

#[tokio::test]
async fn wrong_digests() {
    let registry = Registry::start().await;
    for algorithm in ALGORITHMS {
        let chunked = |last| Way::Chunked(last, Order::Right);
        for way in [Way::PostOnly, Way::PostPut, Way::Stream, chunked(LastChunk::InPatch), chunked(LastChunk::InPut)] {
            let blob = Blob::sample(algorithm, &format!("wrong {way:?}"), THREE_CHUNKS).spoiled();
            upload::refused(&registry, "conformance/wrong", &blob, way).await;
        }
    }
}

#[tokio::test]
async fn mounts() {
    let registry = Registry::start().await;
    let (one, two) = ("conformance/mounts/one", "conformance/mounts/two");
    for algorithm in ALGORITHMS {
        for (label, from) in [("named", Some(two)), ("anonymous", None)] {
            let blob = Blob::sample(algorithm, label, 512);
            push(&registry, two, &blob, Way::PostPut).await;
            registry.head(&format!("/v2/{one}/blobs/{}", blob.digest)).await.is(404);
            let mounted = mount(&registry, one, &blob, from).await;
            created(&registry, mounted, &blob).await;
            read_and_delete(&registry, one, &blob).await;
            // The deletion affects only this repository; the blob in the other one remains.
            read_and_delete(&registry, two, &blob).await;
            // A blob cannot be mounted from a repository that no longer has it.
            mount(&registry, one, &blob, from).await.is(202);
        }
        let missing = Blob::sample(algorithm, "nowhere", 512);
        for from in [Some(two), None, Some("conformance/nobody")] {
            let opened = mount(&registry, one, &missing, from).await.is(202);
            registry.head(&format!("/v2/{one}/blobs/{}", missing.digest)).await.is(404);
            let finish = upload::finish(&registry, &opened.location(), &missing);
            let done = reply(upload::body(finish, &missing.bytes)).await;
            created(&registry, done, &missing).await;
            read_and_delete(&registry, one, &missing).await;
        }
    }
}

#[tokio::test]
async fn a_blob_belongs_to_the_repositories_it_was_pushed_to() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Algorithm::Sha256, "shared", 700);
    for repository in ["conformance/shared/a", "conformance/shared/b"] {
        push(&registry, repository, &blob, Way::PostPut).await;
    }
    registry.get(&format!("/v2/conformance/shared/c/blobs/{}", blob.digest)).await.is(404);
    delete(&registry, "conformance/shared/a", &blob).await;
    read(&registry, "conformance/shared/b", &blob).await;
    // The blob can be pushed again.
    push(&registry, "conformance/shared/a", &blob, Way::Stream).await;
    read(&registry, "conformance/shared/a", &blob).await;
}

#[tokio::test]
async fn one_post_without_bytes_opens_a_session() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Algorithm::Sha256, "bodiless", 2000);
    let path = format!("/v2/conformance/bodiless/blobs/uploads/?digest={}", blob.digest);
    let opened = registry.post(&path).await.is(202);
    let done = reply(upload::body(upload::finish(&registry, &opened.location(), &blob), &blob.bytes)).await;
    created(&registry, done, &blob).await;
    let empty = Blob::new(Algorithm::Sha256, b"");
    let path = format!("/v2/conformance/bodiless/blobs/uploads/?digest={}", empty.digest);
    let done = registry.post(&path).await;
    created(&registry, done, &empty).await;
}

#[tokio::test]
async fn a_session_may_name_its_digest_algorithm() {
    let registry = Registry::start().await;
    for algorithm in ALGORITHMS {
        let blob = Blob::sample(algorithm, "announced", 900);
        let path = format!("/v2/conformance/announced/blobs/uploads/?digest-algorithm={}", algorithm.name());
        let opened = registry.post(&path).await.is(202);
        let done = reply(upload::body(upload::finish(&registry, &opened.location(), &blob), &blob.bytes)).await;
        created(&registry, done, &blob).await;
    }
}

#[tokio::test]
async fn cancels() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Algorithm::Sha256, "cancelled", 512);
    let untouched = begin(&registry, "conformance/cancelled").await;
    let place = begin(&registry, "conformance/cancelled").await;
    let patched = reply(upload::body(registry.ask_at(Method::PATCH, &place), &blob.bytes)).await.is(202);
    for place in [untouched, patched.location()] {
        reply(registry.ask_at(Method::DELETE, &place)).await.is(204).holds(b"");
        for method in [Method::GET, Method::PATCH, Method::DELETE] {
            reply(registry.ask_at(method, &place)).await.is(404).refuses(&["BLOB_UPLOAD_UNKNOWN"]);
        }
        let late = upload::body(upload::finish(&registry, &place, &blob), &blob.bytes);
        reply(late).await.is(404).refuses(&["BLOB_UPLOAD_UNKNOWN"]);
    }
    registry.head(&format!("/v2/conformance/cancelled/blobs/{}", blob.digest)).await.is(404);
}
