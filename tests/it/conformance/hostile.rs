//! Malformed and malicious requests, written byte for byte to the socket.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use content::Algorithm::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{Blob, Registry};
use super::documents::{INDEX, Parts, Set};
use super::upload::{Way, push};

/// An unparsed response.
struct Raw {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Sends bytes and reads until the connection closes.
async fn send(registry: &Registry, request: &[u8]) -> Raw {
    let exchange = async {
        let mut stream = TcpStream::connect(registry.address()).await.expect("a connection");
        // The server may close the connection before everything was sent.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    let shown = String::from_utf8_lossy(request).chars().take(200).collect::<String>();
    let answer = tokio::time::timeout(Duration::from_mins(1), exchange).await;
    let answer = answer.unwrap_or_else(|_| panic!("no end of an answer to {shown:?}"));
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer to {shown:?}: {:?}", String::from_utf8_lossy(&answer)));
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
    Raw { status: status.unwrap_or_else(|| panic!("{shown:?}: {head}")), head, body: answer[end + 4..].to_vec() }
}

/// Returns a request with a target that no client library would send.
fn request(registry: &Registry, method: &str, target: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = [method.as_bytes(), b" ", target, b" HTTP/1.1\r\n"].concat();
    let head = format!(
        "Host: {}\r\nConnection: close\r\nContent-Type: {INDEX}\r\nContent-Length: {}\r\n\r\n",
        registry.address(),
        body.len()
    );
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Returns all files below a folder.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    found
}

/// Returns invalid repository names.
fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        "..",
        ".",
        "a/..",
        "../a",
        "a/../b",
        "a/../../../../tmp/x",
        "%2e%2e",
        "%2e%2e/a",
        "a/%2e%2e/b",
        "a%2f..%2fb",
        "%2e%2e%2f%2e%2e%2fetc",
        "a%2fb",
        "a%5cb",
        "a\\b",
        "..\\..\\x",
        "a%00b",
        "%00",
        "a%0ab",
        "a%0d%0ab",
        "-a",
        "a-",
        ".a",
        "a.",
        "_a",
        "a//b",
        "a%20b",
        "a:b",
        "a@b",
        "~",
        "a*b",
        "%C3%BC",
        "%ff%fe",
        "%zz",
        "a%",
        "a%2",
        "CON:",
        "a;b",
        "a|b",
        "$(x)",
        "a'b",
    ]
    .iter()
    .map(|name| name.as_bytes().to_vec())
    .collect();
    names.push(b"\xff\xfe".to_vec());
    names.push(b"a\0b".to_vec());
    names.push(vec![b'a'; 256]);
    names.push(vec![b'a'; 5000]);
    names.push(b"a/".repeat(200));
    names
}

#[tokio::test]
async fn names_that_lead_elsewhere() {
    let registry = Registry::start().await;
    let home = std::env::var_os("LODE_TEST_REGISTRY").is_none().then(|| registry.server().home());
    let outside = |home: &Option<PathBuf>| {
        let folder = home.as_deref().and_then(Path::parent).map(Path::to_owned);
        let inside = home.clone().unwrap_or_default();
        folder.map(|folder| files(&folder).into_iter().filter(|path| !path.starts_with(&inside)).collect::<Vec<_>>())
    };
    let index = br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}"#;
    let digest = content::Digest::of(index);
    let before = outside(&home);
    for name in names() {
        for (method, rest, body) in [
            ("GET", "/manifests/latest".to_owned(), b"".as_slice()),
            ("PUT", "/manifests/latest".to_owned(), index),
            ("PUT", format!("/manifests/{digest}"), index),
            ("DELETE", "/manifests/latest".to_owned(), b""),
            ("GET", format!("/blobs/{digest}"), b""),
            ("POST", "/blobs/uploads/".to_owned(), b""),
            ("POST", format!("/blobs/uploads/?digest={digest}"), index),
            ("GET", "/tags/list".to_owned(), b""),
            ("GET", format!("/referrers/{digest}"), b""),
        ] {
            // The list of referrers must refuse an invalid name too. An empty list would look like
            // a valid name without referrers.
            let target = [b"/v2/", name.as_slice(), rest.as_bytes()].concat();
            refused(&registry, method, &target, body).await;
        }
    }
    assert_eq!(outside(&home), before, "files outside the store");
    let catalog = registry.get("/v2/_catalog").await.is(200).json();
    if home.is_some() {
        assert_eq!(catalog["repositories"], serde_json::json!([]));
    }
}

/// Asserts a client error, whose body has the specification's format or is empty.
async fn refused(registry: &Registry, method: &str, target: &[u8], body: &[u8]) {
    let answer = send(registry, &request(registry, method, target, body)).await;
    let shown = format!("{method} {}: {}", String::from_utf8_lossy(target), answer.head);
    assert!((400..500).contains(&answer.status), "{shown}");
    let is_json = answer.head.to_lowercase().contains("content-type: application/json");
    if is_json && !answer.body.is_empty() {
        let document: serde_json::Value =
            serde_json::from_slice(&answer.body).unwrap_or_else(|e| panic!("{shown}: {e}"));
        assert!(document["errors"][0]["code"].is_string(), "{shown}: {document}");
    }
}

#[tokio::test]
async fn tags_that_are_none() {
    let registry = Registry::start().await;
    let mut set = Set::new(Sha256, "hostile tags");
    let image = set.manifest(&Parts::image());
    super::data_sets::push_blobs(&registry, "conformance/tags", &set).await;
    let long = "x".repeat(129);
    for tag in [
        "..",
        ".",
        ".hidden",
        "-dash",
        "%2e%2e",
        "a%2fb",
        "..%2f..%2fx",
        "a/b",
        "../x",
        "a%00",
        "%0a",
        "a b",
        "a%20b",
        "a:b",
        "%C3%BC",
        "%ff",
        "a%",
        "",
        "a@b",
        "a+b",
        "%2B",
        "~",
        &long,
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let body = if method == "PUT" { image.bytes.as_slice() } else { b"" };
            refused(&registry, method, format!("/v2/conformance/tags/manifests/{tag}").as_bytes(), body).await;
        }
    }
    // The longest allowed tag, and tags with every kind of character.
    for tag in [&"x".repeat(128), "_a", "A.b-C_9"] {
        let path = format!("/v2/conformance/tags/manifests/{tag}");
        registry.put(&path, &image.media_type, &image.bytes).await.is(201);
        registry.get(&path).await.is(200).holds(&image.bytes);
    }
    let parameter = format!("/v2/conformance/tags/manifests/{}?tag=fine&tag=..%2Fx", image.digest);
    registry.put(&parameter, &image.media_type, &image.bytes).await.is(400);
    registry.get("/v2/conformance/tags/manifests/fine").await.is(404);
}

#[tokio::test]
async fn queries_that_are_none() {
    let registry = Registry::start().await;
    let path = "/v2/conformance/queries";
    for (method, target) in [
        ("POST", format!("{path}/blobs/uploads/?digest=")),
        ("POST", format!("{path}/blobs/uploads/?digest=%ff")),
        ("POST", format!("{path}/blobs/uploads/?digest=../../x")),
        ("POST", format!("{path}/blobs/uploads/?mount=&from=../x")),
        ("POST", format!("{path}/blobs/uploads/?digest-algorithm=md5")),
        ("GET", format!("{path}/tags/list?last=../x&n=%00")),
        ("GET", format!("{path}/tags/list?last=%ff%fe&n=5")),
        ("GET", "/v2/_catalog?last=../../x&n=5".to_owned()),
        ("GET", "/v2/_catalog?n=-5".to_owned()),
        ("GET", format!("{path}/manifests/x?ns=../../etc")),
        ("GET", format!("{path}/manifests/x?ns=%00")),
        ("GET", format!("{path}/referrers/{}?artifactType=%00%ff", content::Digest::of(b""))),
    ] {
        let answer = send(&registry, &request(&registry, method, target.as_bytes(), b"")).await;
        assert!((200..500).contains(&answer.status), "{method} {target}: {}", answer.head);
    }
}

#[tokio::test]
async fn head_has_no_body_on_the_wire() {
    let registry = Registry::start().await;
    let repository = "conformance/head-wire";
    let mut set = Set::new(Sha256, "head");
    let image = set.manifest(&Parts::image());
    super::data_sets::push_blobs(&registry, repository, &set).await;
    super::data_sets::put(&registry, repository, "latest", &image, &[]).await;
    let blob = &set.blobs[0];
    for (target, size) in [
        (format!("/v2/{repository}/manifests/latest"), Some(image.bytes.len())),
        (format!("/v2/{repository}/blobs/{}", blob.digest), Some(blob.bytes.len())),
        (format!("/v2/{repository}/manifests/missing"), None),
        (format!("/v2/{repository}/blobs/{}", content::Digest::of(b"missing")), None),
        ("/v2/".to_owned(), None),
    ] {
        let answer = send(&registry, &request(&registry, "HEAD", target.as_bytes(), b"")).await;
        assert_eq!(answer.body, b"", "{target}: {}", answer.head);
        if let Some(size) = size {
            let length = format!("content-length: {size}");
            assert!(answer.head.to_lowercase().contains(&length), "{target}: {}", answer.head);
        }
    }
}

#[tokio::test]
async fn lengths_that_are_wrong() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "lengths", 1000);
    let target = format!("/v2/conformance/lengths/blobs/uploads/?digest={}", blob.digest);
    for length in ["-1", "abc", "999", "18446744073709551616", "1000, 1001"] {
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n",
            registry.address()
        );
        let answer = send(&registry, &[head.as_bytes(), &blob.bytes].concat()).await;
        assert!((400..500).contains(&answer.status), "{length}: {}", answer.head);
    }
    // The announced length exceeds any disk, and nothing follows. The server may refuse or wait,
    // but it reserves no space and does not crash.
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: {}\r\nContent-Length: 9000000000000000000\r\n\r\n",
        registry.address()
    );
    let mut stream = TcpStream::connect(registry.address()).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    drop(stream);
    registry.head(&format!("/v2/conformance/lengths/blobs/{}", blob.digest)).await.is(404);
    push(&registry, "conformance/lengths", &blob, Way::PostPut).await;
}

#[tokio::test]
async fn both_a_length_and_chunks() {
    let registry = Registry::start().await;
    let body = "0\r\n\r\nGET /v2/_catalog HTTP/1.1\r\nHost: x\r\n\r\n";
    let smuggled = format!(
        "POST /v2/conformance/smuggled/blobs/uploads/ HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n{body}",
        registry.address(),
        body.len()
    );
    let answer = send(&registry, smuggled.as_bytes()).await;
    assert!(!String::from_utf8_lossy(&answer.body).contains("repositories"), "{}", answer.head);
}
