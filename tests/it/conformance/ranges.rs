//! Range requests for blobs.

use content::Algorithm::{Sha256, Sha512};
use reqwest::Method;

use super::client::{Blob, Registry, Reply, reply};
use super::upload::{Way, push};

const SIZE: usize = 2048;

async fn part(registry: &Registry, path: &str, range: &str) -> Reply {
    reply(registry.ask(Method::GET, path).header("Range", range)).await
}

#[tokio::test]
async fn one_range() {
    let registry = Registry::start().await;
    for algorithm in [Sha256, Sha512] {
        let blob = Blob::sample(algorithm, "one range", SIZE);
        push(&registry, "conformance/ranges", &blob, Way::PostPut).await;
        let path = format!("/v2/conformance/ranges/blobs/{}", blob.digest);
        for (range, begin, end) in [
            ("bytes=500-1499", 500, 1500),
            ("bytes=500-", 500, SIZE),
            ("bytes=-500", SIZE - 500, SIZE),
            ("bytes=2000-5000", 2000, SIZE),
            ("bytes=0-0", 0, 1),
            ("bytes=2047-2047", 2047, SIZE),
            ("bytes=0-", 0, SIZE),
            ("bytes=-5000", 0, SIZE),
            ("bytes=0-18446744073709551615", 0, SIZE),
        ] {
            let answer = part(&registry, &path, range).await.is(206).holds(&blob.bytes[begin..end]);
            let answer = answer.has("Content-Length", &(end - begin).to_string());
            answer.has("Content-Range", &format!("bytes {begin}-{}/{SIZE}", end - 1));
        }
        for range in ["bytes=500-0", "bytes=5000-10000", "bytes=2048-", "bytes=-0"] {
            part(&registry, &path, range).await.is(416).has("Content-Range", &format!("bytes */{SIZE}"));
        }
        // The server ignores a header that is not a valid range of bytes.
        for range in ["items=0-5", "bytes", "bytes=", "bytes=a-b", "bytes=--5", "bytes=99999999999999999999999-"] {
            let answer = part(&registry, &path, range).await.any_of(&[200, 416]);
            if answer.status == 200 {
                answer.holds(&blob.bytes);
            }
        }
        let whole = registry.get(&path).await.is(200).holds(&blob.bytes);
        whole.has("Accept-Ranges", "bytes").has("Content-Length", &SIZE.to_string());
    }
}

#[tokio::test]
async fn a_range_of_nothing() {
    let registry = Registry::start().await;
    let empty = Blob::new(Sha256, b"");
    push(&registry, "conformance/nothing", &empty, Way::PostPut).await;
    let path = format!("/v2/conformance/nothing/blobs/{}", empty.digest);
    for range in ["bytes=0-", "bytes=0-0", "bytes=-1"] {
        part(&registry, &path, range).await.any_of(&[200, 416]);
    }
}

/// A server may send all of the ranges, or the whole blob.
#[tokio::test]
async fn several_ranges() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "several ranges", SIZE);
    push(&registry, "conformance/several", &blob, Way::PostPut).await;
    let path = format!("/v2/conformance/several/blobs/{}", blob.digest);
    let answer = part(&registry, &path, "bytes=0-9,2000-2003").await.any_of(&[200, 206]);
    if answer.status == 200 {
        answer.holds(&blob.bytes);
    } else {
        let kind = answer.header("Content-Type");
        let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap_or_else(|| panic!("{answer}"));
        assert!(find(&answer.body, format!("--{}--", boundary.trim_matches('"')).as_bytes()), "{answer}");
        for (begin, end) in [(0, 10), (2000, 2004)] {
            assert!(find(&answer.body, format!("bytes {begin}-{}/{SIZE}", end - 1).as_bytes()), "{answer}");
            assert!(find(&answer.body, &blob.bytes[begin..end]), "{answer}");
        }
    }
    // Many overlapping ranges are an attack: the response must have at most twice the blob's size.
    let many = format!("bytes={}", vec!["0-"; 1000].join(","));
    let answer = part(&registry, &path, &many).await;
    assert!(answer.body.len() <= 2 * SIZE, "{} bytes", answer.body.len());
}

fn find(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[tokio::test]
async fn a_range_of_what_has_not_changed() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "if range", SIZE);
    push(&registry, "conformance/if-range", &blob, Way::PostPut).await;
    let path = format!("/v2/conformance/if-range/blobs/{}", blob.digest);
    let tag = registry.head(&path).await.is(200).header("ETag");
    let ask =
        |condition: &str| registry.ask(Method::GET, &path).header("Range", "bytes=5-9").header("If-Range", condition);
    reply(ask(&tag)).await.is(206).holds(&blob.bytes[5..10]);
    for changed in ["\"something else\"", "Wed, 21 Oct 2015 07:28:00 GMT"] {
        reply(ask(changed)).await.is(200).holds(&blob.bytes);
    }
    // `If-None-Match` takes precedence over `Range`.
    let same = registry.ask(Method::GET, &path).header("Range", "bytes=5-9").header("If-None-Match", &tag);
    reply(same).await.is(304).holds(b"");
}

#[tokio::test]
async fn head_says_how_large_the_whole_is() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "head", SIZE);
    push(&registry, "conformance/head", &blob, Way::PostPut).await;
    let head = registry.head(&format!("/v2/conformance/head/blobs/{}", blob.digest)).await.is(200).holds(b"");
    head.has("Content-Length", &SIZE.to_string()).has("Accept-Ranges", "bytes");
}
