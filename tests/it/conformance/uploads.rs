//! Uploads that go wrong: foreign repositories, restarts, kills, broken connections, wrong lengths,
//! concurrent uploads.

use content::Algorithm::{Sha256, Sha512};
use reqwest::{Body, Method, Url};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::client::{Blob, Registry, reply};
use super::upload::{Way, attempt, begin, body, chunk, created, finish, push, state};

#[tokio::test]
async fn a_session_belongs_to_its_repository() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "own session", 900);
    let place = begin(&registry, "conformance/own").await;
    let mut other = place.clone();
    other.set_path(&place.path().replace("conformance/own", "conformance/foreign"));
    assert_ne!(place.path(), other.path(), "the session's place names its repository");
    for method in [Method::GET, Method::PATCH, Method::DELETE] {
        reply(registry.ask_at(method, &other)).await.is(404).refuses(&["BLOB_UPLOAD_UNKNOWN"]);
    }
    reply(body(finish(&registry, &other, &blob), &blob.bytes)).await.is(404).refuses(&["BLOB_UPLOAD_UNKNOWN"]);
    let done = reply(body(finish(&registry, &place, &blob), &blob.bytes)).await;
    created(&registry, done, &blob).await;
    // A completed session no longer exists.
    reply(registry.ask_at(Method::GET, &place)).await.is(404).refuses(&["BLOB_UPLOAD_UNKNOWN"]);
}

#[tokio::test]
async fn unknown_sessions() {
    let registry = Registry::start().await;
    for id in ["00000000-0000-4000-8000-000000000000", "x", "..", "%2e%2e", "a%2f..%2fb", &"x".repeat(3000)] {
        let path = format!("/v2/conformance/unknown/blobs/uploads/{id}");
        for method in [Method::GET, Method::PATCH, Method::DELETE] {
            reply(registry.ask(method, &path)).await.any_of(&[400, 404, 405, 414]);
        }
    }
    let path = "/v2/conformance/unknown/blobs/uploads/00000000-0000-4000-8000-000000000000";
    registry.get(path).await.is(404).refuses(&["BLOB_UPLOAD_UNKNOWN"]);
}

#[tokio::test]
async fn a_session_outlives_the_daemon() {
    let Some(mut registry) = Registry::daemon("conformance::uploads::a_session_outlives_the_daemon").await else {
        return;
    };
    for algorithm in [Sha256, Sha512] {
        let blob = Blob::sample(algorithm, "restart", 3 << 20);
        let untouched = begin(&registry, "conformance/restart").await;
        let place = begin(&registry, "conformance/restart").await;
        let first = chunk(registry.ask_at(Method::PATCH, &place), &blob, 0, 1_500_000);
        let place = reply(first).await.is(202).has("Range", "0-1499999").location();
        registry = registry.restart().await;
        let (there, place) = state(&registry, &place).await;
        assert_eq!(there, 1_500_000);
        let second = chunk(registry.ask_at(Method::PATCH, &place), &blob, 1_500_000, 2_000_000);
        let place = reply(second).await.is(202).location();
        registry = registry.restart().await;
        let rest = chunk(finish(&registry, &place, &blob), &blob, 2_000_000, blob.bytes.len());
        created(&registry, reply(rest).await, &blob).await;
        assert_eq!(state(&registry, &untouched).await.0, 0);
        registry = registry.restart().await;
        registry.get(&format!("/v2/conformance/restart/blobs/{}", blob.digest)).await.is(200).holds(&blob.bytes);
    }
}

#[tokio::test]
async fn killed_in_the_middle_of_a_chunk() {
    let Some(mut registry) = Registry::daemon("conformance::uploads::killed_in_the_middle_of_a_chunk").await else {
        return;
    };
    let blob = Blob::sample(Sha256, "killed", 4 << 20);
    for round in 1..=8_usize {
        let place = begin(&registry, "conformance/killed").await;
        let first = chunk(registry.ask_at(Method::PATCH, &place), &blob, 0, 1 << 20);
        let place = reply(first).await.is(202).location();
        let slow = Body::wrap_stream(trickle(blob.bytes[1 << 20..].to_vec()));
        let request =
            registry.ask_at(Method::PATCH, &place).header("Content-Type", "application/octet-stream").body(slow);
        let sending = tokio::spawn(async move { request.send().await.map(|answer| answer.status()) });
        tokio::time::sleep(std::time::Duration::from_millis(round as u64 * 7)).await;
        registry = registry.restart().await;
        // The request may have succeeded or failed.
        let _ = sending.await.expect("no panic");
        let (there, place) = state(&registry, &place).await;
        assert!((1 << 20..=blob.bytes.len()).contains(&there), "{there} bytes after the kill");
        let head = registry.head(&format!("/v2/conformance/killed/blobs/{}", blob.digest)).await;
        assert_eq!(head.status, 404, "{head}");
        let rest = match there {
            all if all == blob.bytes.len() => body(finish(&registry, &place, &blob), b""),
            _ => chunk(finish(&registry, &place, &blob), &blob, there, blob.bytes.len()),
        };
        created(&registry, reply(rest).await, &blob).await;
        registry.delete(&format!("/v2/conformance/killed/blobs/{}", blob.digest)).await.is(202);
    }
}

/// Returns a stream that sends the bytes slowly.
fn trickle(bytes: Vec<u8>) -> impl futures_util::Stream<Item = std::io::Result<Vec<u8>>> + Send + 'static {
    futures_util::stream::unfold((bytes, 0_usize), |(bytes, done)| async move {
        if done == bytes.len() {
            return None;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let end = (done + 40_000).min(bytes.len());
        Some((Ok(bytes[done..end].to_vec()), (bytes, end)))
    })
}

/// Sends a request whose body breaks off: it announces `length` bytes and sends `bytes`.
async fn break_off(registry: &Registry, method: &str, place: &Url, length: usize, bytes: &[u8]) {
    let mut stream = TcpStream::connect(registry.address()).await.expect("a connection");
    let query = place.query().map(|query| format!("?{query}")).unwrap_or_default();
    let head = format!(
        "{method} {}{query} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n",
        place.path(),
        registry.address()
    );
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    stream.write_all(bytes).await.expect("the body is sent");
    stream.shutdown().await.expect("the connection closes");
    // Waits until the daemon closes the connection.
    let mut rest = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
}

#[tokio::test]
async fn bodies_that_break_off() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "broken", 100_000);
    let path = format!("/v2/conformance/broken-off/blobs/{}", blob.digest);
    // All bytes of the blob arrive, but the request announced more.
    let whole = registry.url(&format!("/v2/conformance/broken-off/blobs/uploads/?digest={}", blob.digest));
    break_off(&registry, "POST", &whole, blob.bytes.len() + 1, &blob.bytes).await;
    registry.head(&path).await.is(404);
    let place = begin(&registry, "conformance/broken-off").await;
    let put = super::client::with_query(place.clone(), "digest", &blob.digest.to_string());
    break_off(&registry, "PUT", &put, blob.bytes.len() + 1, &blob.bytes).await;
    registry.head(&path).await.is(404);
    // The session may keep the part of a broken chunk that arrived, and reports its length.
    let place = begin(&registry, "conformance/broken-off").await;
    break_off(&registry, "PATCH", &place, blob.bytes.len(), &blob.bytes[..60_000]).await;
    let (there, place) = state(&registry, &place).await;
    assert!(there <= 60_000, "{there} bytes");
    let rest = chunk(finish(&registry, &place, &blob), &blob, there, blob.bytes.len());
    created(&registry, reply(rest).await, &blob).await;
}

#[tokio::test]
async fn ranges_that_are_none() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "ranges", 1000);
    let place = begin(&registry, "conformance/range-headers").await;
    // Ranges that are longer or shorter than the body, reversed, overflowing, or not at the
    // session's offset.
    for range in
        ["0-2000", "0-10", "999-0", "0-18446744073709551615", "18446744073709551615-1", "5-1004", "a-b", "-", "0-"]
    {
        let request = body(registry.ask_at(Method::PATCH, &place), &blob.bytes).header("Content-Range", range);
        reply(request).await.any_of(&[400, 416]);
        assert_eq!(state(&registry, &place).await.0, 0, "after {range}");
    }
    let request = body(registry.ask_at(Method::PATCH, &place), &blob.bytes).header("Content-Range", "0-999");
    let place = reply(request).await.is(202).has("Range", "0-999").location();
    // The same chunk sent again has a wrong offset.
    let again = body(registry.ask_at(Method::PATCH, &place), &blob.bytes).header("Content-Range", "0-999");
    reply(again).await.is(416);
    created(&registry, reply(body(finish(&registry, &place, &blob), b"")).await, &blob).await;
}

#[tokio::test]
async fn a_put_needs_a_digest() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "no digest", 1000);
    let place = begin(&registry, "conformance/no-digest").await;
    reply(body(registry.ask_at(Method::PUT, &place), &blob.bytes)).await.is(400).refuses(&["DIGEST_INVALID"]);
}

#[tokio::test]
async fn many_push_the_same() {
    let registry = std::sync::Arc::new(Registry::start().await);
    let blob = Blob::sample(Sha256, "same", 1 << 20);
    let mut pushes = tokio::task::JoinSet::new();
    for (number, way) in (0..16).zip(Way::ALL.into_iter().cycle()) {
        let (registry, blob) = (registry.clone(), blob.clone());
        let repository = format!("conformance/same/{}", number % 3);
        pushes.spawn(async move {
            let done = attempt(&registry, &repository, &blob, way).await;
            created(&registry, done, &blob).await;
        });
    }
    pushes.join_all().await;
    for number in 0..3 {
        let path = format!("/v2/conformance/same/{number}/blobs/{}", blob.digest);
        registry.get(&path).await.is(200).holds(&blob.bytes);
        registry.delete(&path).await.is(202);
        registry.get(&path).await.is(404);
    }
}

/// Two clients send to one session at the same time. One of them may fail, but their bytes must not
/// be mixed.
#[tokio::test]
async fn two_at_one_session() {
    let registry = std::sync::Arc::new(Registry::start().await);
    let blob = Blob::sample(Sha256, "two", 2 << 20);
    let place = begin(&registry, "conformance/two").await;
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (registry, blob, place) = (registry.clone(), blob.clone(), place.clone());
        senders.spawn(async move {
            let request = chunk(registry.ask_at(Method::PATCH, &place), &blob, 0, blob.bytes.len());
            reply(request).await.status
        });
    }
    let statuses = senders.join_all().await;
    assert!(statuses.iter().all(|status| [202, 400, 409, 416, 429].contains(status)), "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 202).count(), 1, "{statuses:?}");
    let (there, place) = state(&registry, &place).await;
    assert_eq!(there, blob.bytes.len());
    created(&registry, reply(body(finish(&registry, &place, &blob), b"")).await, &blob).await;
}

#[tokio::test]
async fn what_was_pushed_is_there_after_a_kill() {
    let Some(registry) = Registry::daemon("conformance::uploads::what_was_pushed_is_there_after_a_kill").await else {
        return;
    };
    let mut set = super::documents::Set::new(Sha256, "kill");
    let image = set.manifest(&super::documents::Parts::image());
    let about = super::documents::Parts::artifact(super::documents::EXAMPLE).about(image.descriptor());
    let artifact = set.manifest(&about);
    let loose = Blob::sample(Sha256, "loose", 5000);
    super::data_sets::push_blobs(&registry, "conformance/kill", &set).await;
    push(&registry, "conformance/kill", &loose, Way::PostOnly).await;
    super::data_sets::put(&registry, "conformance/kill", "latest", &image, &[]).await;
    super::data_sets::put(&registry, "conformance/kill", &artifact.digest.to_string(), &artifact, &[]).await;
    let registry = registry.restart().await;
    for blob in set.blobs.iter().chain([&loose]) {
        registry.get(&format!("/v2/conformance/kill/blobs/{}", blob.digest)).await.is(200).holds(&blob.bytes);
    }
    for (name, document) in [("latest", &image), (&artifact.digest.to_string(), &artifact)] {
        let answer = registry.get(&format!("/v2/conformance/kill/manifests/{name}")).await.is(200);
        answer.holds(&document.bytes).has("Content-Type", &document.media_type);
    }
    let answer = registry.get(&format!("/v2/conformance/kill/referrers/{}", image.digest)).await;
    assert_eq!(super::referrers::list(answer), [artifact.referrer()]);
}

/// The daemon is killed at each step of the commit of a blob and of a manifest. Visible content is
/// complete, acknowledged content exists, and the push can be repeated.
#[tokio::test]
async fn killed_at_every_step_of_a_commit() {
    let Some(mut registry) = Registry::daemon("conformance::uploads::killed_at_every_step_of_a_commit").await else {
        return;
    };
    for point in store::CrashPoint::CREATE {
        let (repository, name) = (format!("conformance/crash/{}", point.name()), point.name());
        let crash = [("LODE_CRASH_AT", name)];
        let mut set = super::documents::Set::new(Sha256, name);
        let image = set.manifest(&super::documents::Parts::image());
        let of_tags = matches!(point, store::CrashPoint::TagWritten | store::CrashPoint::TagRenamed);
        for blob in &set.blobs {
            let path = format!("/v2/{repository}/blobs/uploads/?digest={}", blob.digest);
            if !of_tags {
                registry = registry.restart_with(&crash).await;
                let request = body(registry.ask(Method::POST, &path), &blob.bytes);
                registry.send_to_death(request).await;
                registry = registry.restart().await;
                let there = registry.get(&format!("/v2/{repository}/blobs/{}", blob.digest)).await.any_of(&[200, 404]);
                assert!(there.status == 404 || there.body == blob.bytes, "{name}");
            }
            push(&registry, &repository, blob, Way::PostOnly).await;
        }
        registry = registry.restart_with(&crash).await;
        let path = format!("/v2/{repository}/manifests/latest");
        let request = registry.ask(Method::PUT, &path).header("Content-Type", image.media_type.as_str());
        let request = request.body(image.bytes.clone());
        registry.send_to_death(request).await;
        registry = registry.restart().await;
        for blob in &set.blobs {
            let there = registry.get(&format!("/v2/{repository}/blobs/{}", blob.digest)).await;
            there.is(200).holds(&blob.bytes);
        }
        let there = registry.get(&path).await.any_of(&[200, 404]);
        assert!(there.status == 404 || there.body == image.bytes, "{name}");
        super::data_sets::put(&registry, &repository, "latest", &image, &[]).await;
    }
}
