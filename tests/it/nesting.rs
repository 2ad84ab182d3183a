//! Nested indexes in the registry: a push with too many levels is refused. A store with such
//! indexes from an earlier version can be inspected and cleared.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use content::Digest;
use serde_json::json;

use crate::server::Server;
use crate::support::say;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The number of levels in the store of an earlier version; `LODE_CAMPAIGN_LEVELS` overrides it.
const LEVELS: usize = 20_000;

/// Returns an image without layers, whose config is `{}`.
fn image() -> Vec<u8> {
    let config =
        json!({"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}").to_string(), "size": 2});
    json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []}).to_string().into_bytes()
}

fn index_of(media_type: &str, inner: &[u8]) -> Vec<u8> {
    let entry = json!({"mediaType": media_type, "digest": Digest::of(inner).to_string(), "size": inner.len()});
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).to_string().into_bytes()
}

async fn put(server: &Server, reference: &str, media_type: &str, document: &[u8]) -> (u16, String) {
    let url = server.url(&format!("/v2/team/image/manifests/{reference}"));
    let request = reqwest::Client::new().put(url).header("content-type", media_type).body(document.to_vec());
    let response = request.send().await.expect("the daemon answers");
    (response.status().as_u16(), response.text().await.expect("text"))
}

async fn with_image(server: &Server) -> Vec<u8> {
    let url = server.url(&format!("/v2/team/image/blobs/uploads/?digest={}", Digest::of(b"{}")));
    let sent = reqwest::Client::new().post(url).body("{}").send().await.expect("the daemon answers");
    assert_eq!(sent.status().as_u16(), 201);
    let image = image();
    assert_eq!(put(server, &Digest::of(&image).to_string(), MANIFEST, &image).await.0, 201);
    image
}

#[tokio::test]
async fn a_push_of_many_levels_is_refused() {
    let server = Server::start(&[]).await;
    let mut inner = with_image(&server).await;
    let mut media_type = MANIFEST;
    for level in 2..=9 {
        let index = index_of(media_type, &inner);
        let (status, told) = put(&server, "many", INDEX, &index).await;
        assert_eq!(status, if level <= 8 { 201 } else { 400 }, "{level} levels: {told}");
        if level == 9 {
            assert!(told.contains("9 or more levels") && told.contains("at most 8"), "{told}");
        }
        (inner, media_type) = (index, INDEX);
    }
}

/// Returns the file below a folder whose path contains this text.
fn find(folder: &Path, part: &str) -> PathBuf {
    let found = walk(folder).into_iter().find(|path| path.to_string_lossy().contains(part));
    found.unwrap_or_else(|| panic!("no `{part}` below {}", folder.display()))
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Walks over the levels do not overflow the stack, and their time is not quadratic in the number
/// of levels.
#[tokio::test]
async fn a_store_with_many_levels_can_be_cleared() {
    let mut first = Server::start(&[]).await;
    let image = with_image(&first).await;
    let lowest = index_of(MANIFEST, &image);
    assert_eq!(put(&first, "deep", INDEX, &lowest).await.0, 201);
    assert!(first.lode(&["shutdown"]).status.success());
    assert!(first.ended(Duration::from_secs(30)).await);
    let from = first.home();
    let server = Server::prepared(&[], |home| {
        let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(home).status();
        assert!(copied.expect("cp runs").success());
        let hex = Digest::of(&lowest).hex();
        let link = find(&home.join("links"), &hex).to_string_lossy().into_owned();
        let blob = find(&home.join("blobs"), &hex).to_string_lossy().into_owned();
        let mut inner = lowest.clone();
        let levels = std::env::var("LODE_CAMPAIGN_LEVELS").ok().and_then(|text| text.parse().ok());
        for _ in 0..levels.unwrap_or(LEVELS) {
            let index = index_of(INDEX, &inner);
            let own = Digest::of(&index).hex();
            let blob = blob.replace(&hex, &own).replace(&format!("/{}/", &hex[..2]), &format!("/{}/", &own[..2]));
            fs::write(blob, &index).expect("a blob");
            fs::write(link.replace(&hex, &own), b"").expect("a link");
            inner = index;
        }
        fs::write(find(&home.join("tags"), "deep"), format!("{}\n", Digest::of(&inner))).expect("a tag");
    })
    .await;
    let begin = Instant::now();
    for arguments in [&["du"][..], &["list"], &["fsck"], &["rm", "team/image:deep"], &["gc"], &["du"], &["list"]] {
        let output = server.lode(arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {told}");
        say(&format!("{arguments:?} was done after {:?}", begin.elapsed()));
    }
    let list = server.lode(&["list"]);
    assert!(!String::from_utf8_lossy(&list.stdout).contains("team/image"));
}
