//! Models are saved to an archive and loaded into another store; hostile archives are refused.

use std::io::{Read, Write};
use std::path::Path;

use archive::{Reader, Writer};
use content::Digest;
use serde_json::{Value, json};

use super::{digest, document, done, fails, files, fine_tune, run};
use crate::server::Server;
use crate::support::{list, tiny_model};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

fn size(path: &Path) -> u64 {
    path.metadata().expect("a file").len()
}

/// Unpacks an archive into a folder.
fn unpack(tar: &Path, folder: &Path) {
    let mut tar = Reader::new(std::fs::File::open(tar).expect("an archive"));
    while let Some(entry) = tar.next().expect("readable") {
        let path = folder.join(&entry.path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let mut bytes = Vec::new();
        tar.read_to_end(&mut bytes).expect("readable");
        std::fs::write(path, bytes).expect("a file");
    }
}

#[tokio::test]
async fn models_go_from_store_to_store() {
    let (from, to) = (Server::start(&[]).await, Server::start(&[]).await);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tuned = fine_tune();
    from.create("base", &tiny_model()).await;
    from.create("team/tuned:v1", tuned.path()).await;
    let tar = folder.path().join("both.tar");
    done(&from, &["save", "base", "team/tuned:v1", "-o", text(&tar)]);
    let again = from.lode(&["save", "base", "team/tuned:v1", "-o", "-"]);
    assert!(again.stdout == std::fs::read(&tar).expect("a file"), "the same models give the same bytes");

    let loaded = run(&to, &["load", text(&tar)]);
    assert!(loaded.success && loaded.out.contains("team/tuned:v1"), "{}{}", loaded.out, loaded.err);
    let sorted = |server: &Server| {
        let mut usage = document(server, &["du"]);
        usage.as_object_mut().expect("an object").remove("free_bytes");
        // `used` is the time when the model was loaded into this store.
        for model in usage["models"].as_array_mut().expect("models") {
            model.as_object_mut().expect("an object").remove("used");
        }
        usage
    };
    assert_eq!(sorted(&to), sorted(&from));
    let request = json!({"model": "team/tuned:v1", "prompt": "x", "raw": true, "stream": false});
    to.ask("/api/generate", &request).await;
    assert!(run(&to, &["load", text(&tar)]).err.contains("0 blobs (0 B) are new"));

    // Loads a folder, with the names that other tools write.
    let layout = folder.path().join("layout");
    unpack(&tar, &layout);
    let third = Server::start(&[]).await;
    done(&third, &["load", text(&layout)]);
    assert_eq!(sorted(&third), sorted(&from));
    let index = layout.join("index.json");
    let mut parsed: Value = serde_json::from_slice(&std::fs::read(&index).expect("a file")).expect("JSON");
    parsed["manifests"].as_array_mut().expect("a list").truncate(1);
    parsed["manifests"][0]["annotations"] = json!({"org.opencontainers.image.ref.name": "latest"});
    std::fs::write(&index, parsed.to_string()).expect("a file");
    fails(&third, &["load", text(&layout)], "--name");
    done(&third, &["load", text(&layout), "--name", "ghcr.io/someone/model:v2"]);
    assert_eq!(digest(&third, "ghcr.io/someone/model:v2"), digest(&from, "base"));
    fails(&from, &["save", "nope", "-o", text(&tar)], "not found");
    fails(&from, &["load", "/no/such.tar"], "/no/such.tar");
}

#[tokio::test]
async fn an_archive_may_have_only_what_the_other_side_lacks() {
    let (from, to) = (Server::start(&[]).await, Server::start(&[]).await);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [base, delta, same] = ["base.tar", "delta.tar", "same.tar"].map(|name| folder.path().join(name));
    let tuned = fine_tune();
    from.create("base", &tiny_model()).await;
    from.create("tuned", tuned.path()).await;
    done(&from, &["save", "base", "-o", text(&base)]);
    done(&from, &["save", "tuned", "--since", "base", "-o", text(&delta)]);
    done(&from, &["save", "tuned", "--since", text(&base), "-o", text(&same)]);
    assert!(size(&delta) < size(&base) / 2, "{} of {}", size(&delta), size(&base));
    assert_eq!(std::fs::read(&delta).expect("a file"), std::fs::read(&same).expect("a file"));

    fails(&to, &["load", text(&delta)], &digest(&from, "base"));
    assert_eq!(files(&to.home().join("blobs")).len(), 0, "nothing is left of what cannot be completed");
    done(&to, &["load", text(&base)]);
    done(&to, &["load", text(&delta)]);
    assert_eq!(digest(&to, "tuned"), digest(&from, "tuned"));
}

/// Returns a tar of these files.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Writer::new(Vec::new());
    for (path, bytes) in members {
        tar.member(path, bytes.len() as u64).expect("memory");
        tar.write_all(bytes).expect("memory");
    }
    tar.finish().expect("memory")
}

/// Changes the type of a tar's first member, and its checksum.
fn with_kind(mut tar: Vec<u8>, kind: u8) -> Vec<u8> {
    let sum: u32 = u32::from_str_radix(std::str::from_utf8(&tar[148..154]).expect("digits"), 8).expect("octal");
    let sum = sum + u32::from(kind) - u32::from(tar[156]);
    tar[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    tar[156] = kind;
    tar
}

const LAYOUT: (&str, &[u8]) = ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);

/// Returns an index that names a document `m`.
fn index(media_type: &str, bytes: &[u8]) -> Vec<u8> {
    let digest = Digest::of(bytes).to_string();
    let annotations = json!({"org.opencontainers.image.ref.name": "example.com/m:v1"});
    let entry = json!({"mediaType": media_type, "digest": digest, "size": bytes.len(), "annotations": annotations});
    json!({"schemaVersion": 2, "manifests": [entry]}).to_string().into_bytes()
}

#[tokio::test]
async fn hostile_archives_leave_nothing() {
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let server = Server::start(&[]).await;
    let blob = format!("blobs/sha256/{}", Digest::of(b"blob").hex());
    let good: (&str, &[u8]) = (&blob, b"blob");
    let (no_manifest, no_json) = (index(MANIFEST, b"?"), index(MANIFEST, b"blob"));
    let other_type = index("application/vnd.oci.image.index.v1+json", b"blob");
    let huge = vec![b' '; manifests::MAX_MANIFEST + 1];
    let whole = tar(&[LAYOUT, good]);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("no tar", b"not a tar at all".repeat(64), "tar"),
        ("empty", Vec::new(), "oci-layout"),
        ("absolute", tar(&[good, ("/etc/passwd", b"x")]), "absolute"),
        ("upwards", tar(&[good, ("blobs/../../x", b"x")]), "leads out"),
        ("symbolic link", with_kind(tar(&[good]), b'2'), "link"),
        ("hard link", with_kind(tar(&[good]), b'1'), "link"),
        ("device", with_kind(tar(&[good]), b'3'), "neither a file nor a folder"),
        ("cut", whole[..700].to_vec(), "too early"),
        ("wrong bytes", tar(&[LAYOUT, (&blob, b"bl0b")]), "has the wrong digest"),
        ("odd blob", tar(&[LAYOUT, good, ("blobs/sha256/xyz", b"x")]), "not named by a digest"),
        ("no layout", tar(&[good, ("index.json", &no_manifest)]), "oci-layout"),
        ("no index", tar(&[LAYOUT, good]), "index.json"),
        ("two indexes", tar(&[LAYOUT, ("index.json", b"{}"), ("index.json", b"{}")]), "two files"),
        ("huge index", tar(&[LAYOUT, good, ("index.json", &huge)]), "at most"),
        ("no JSON", tar(&[LAYOUT, good, ("index.json", b"{")]), "index.json"),
        ("no manifests", tar(&[LAYOUT, good, ("index.json", br#"{"schemaVersion":2}"#)]), "lists no manifest"),
        ("manifest missing", tar(&[LAYOUT, good, ("index.json", &no_manifest)]), "is not in the archive"),
        ("manifest unreadable", tar(&[("index.json", &no_json), good, LAYOUT]), "manifest"),
        ("index of indexes", tar(&[LAYOUT, good, ("index.json", &other_type)]), "expected a manifest"),
    ];
    for (name, bytes, says) in cases {
        let response = server.http.post(server.url("/api/load")).body(bytes).send().await.expect("an answer");
        let status = response.status().as_u16();
        let answer = response.text().await.expect("a whole answer");
        assert_eq!(status, 400, "{name}: {answer}");
        assert!(answer.contains(says), "{name} does not say `{says}`: {answer}");
        for folder in ["blobs", "ingest", "tags"] {
            assert_eq!(files(&server.home().join(folder)).len(), 0, "{name} left something in `{folder}`");
        }
    }
    let url = server.url("/api/load?name=x@sha256:");
    assert_eq!(server.http.post(url).send().await.expect("an answer").status().as_u16(), 400);
    let listed = document(&server, &["list"]);
    assert_eq!(list(&listed["models"]).len(), 0);
}
