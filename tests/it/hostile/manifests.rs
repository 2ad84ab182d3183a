//! Manifests and indexes that are too large, are not documents, or describe their layers falsely.

use std::sync::Arc;

use axum::body::Bytes;
use serde_json::{Value, json};

use super::registry::{Behaviour, Content, MANIFEST, MANIFEST_TYPE, Registry};
use super::{Case, Expect, check_all};

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// Returns a case with these bytes as the manifest.
fn bytes(name: &'static str, body: impl Into<Bytes>, expect: Expect) -> Case {
    let body = body.into();
    let prepare = move |registry: &Registry| registry.document("latest", MANIFEST_TYPE, body.clone());
    Case::new(name, expect, prepare)
}

/// Returns a case with the correct manifest after a change.
fn changed(name: &'static str, content: &Content, change: impl FnOnce(&mut Value), expect: Expect) -> Case {
    let mut json = content.manifest.json.clone();
    change(&mut json);
    Case::new(name, expect, move |registry: &Registry| registry.manifest(&json))
}

/// Returns the size of a layer in the manifest.
fn size(manifest: &mut Value, layer: usize) -> &mut Value {
    &mut manifest["layers"][layer]["size"]
}

fn digest(bytes: &[u8]) -> String {
    content::Digest::of(bytes).to_string()
}

fn index(entries: &Value) -> String {
    json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}).to_string()
}

fn entry(media_type: &str, document: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(document), "size": document.len()})
}

#[tokio::test]
async fn no_documents() {
    let content = Arc::new(Content::tiny().await);
    let mut large = content.manifest.raw.clone();
    large.resize(5 << 20, b' ');
    let scripted = |name, behaviour: Behaviour, expect| {
        Case::new(name, expect, move |registry: &Registry| registry.script(MANIFEST, &[], behaviour.clone()))
    };
    let cases = vec![
        bytes("5 MiB", large, Expect::fails(&["4194304"])),
        bytes("not JSON", "<html></html>", Expect::fails(&["manifest"])),
        bytes("nothing", "", Expect::fails(&["manifest"])),
        bytes("a list", "[]", Expect::fails(&["manifest"])),
        bytes("an empty object", "{}", Expect::fails(&["manifest"])),
        bytes("nested without end", "[".repeat(1 << 20), Expect::fails(&["manifest"])),
        scripted("endless", Behaviour::Endless, Expect::fails(&["4194304"])),
        scripted("silent", Behaviour::Stall, Expect::fails(&[])),
        scripted("not there", Behaviour::Status(404), Expect::fails(&["not found"])),
        scripted("broken", Behaviour::Status(500), Expect::fails(&["500"])),
        scripted("in a circle", Behaviour::RedirectLoop, Expect::fails(&["redirect"])),
        scripted("with another digest in the header", Behaviour::DigestLie, Expect::Either),
    ];
    check_all(content, cases).await;
}

#[tokio::test]
async fn another_than_was_asked_for() {
    let content = Arc::new(Content::tiny().await);
    let asked = content.manifest.digest.clone();
    let mut other = content.manifest.json.clone();
    other["annotations"]["x"] = json!("y");
    let key = asked.clone();
    let mut case = Case::new("another manifest", Expect::fails(&[&asked[7..19]]), move |registry: &Registry| {
        registry.document(&key, MANIFEST_TYPE, other.to_string());
    });
    case.model = format!("library/tiny@{asked}");
    check_all(content, vec![case]).await;
}

#[tokio::test]
async fn layers_that_lie() {
    let content = Arc::new(Content::tiny().await);
    let tensor = |json: &Value| -> usize {
        let layers = json["layers"].as_array().expect("layers");
        let is = |layer: &Value| layer["size"].as_u64().is_some_and(|size| size > 1000);
        layers.iter().position(is).expect("a tensor of some size")
    };
    let at = tensor(&content.manifest.json);
    let blob = content.manifest.json["layers"][at]["digest"].as_str().expect("a digest")[7..19].to_owned();
    let fails = || Expect::fails(&[&blob]);
    let true_size = size(&mut content.manifest.json.clone(), at).as_u64().expect("a size");
    let shift = |json: &mut Value| {
        let layers = json["layers"].as_array_mut().expect("layers");
        let digests: Vec<Value> = layers.iter().map(|layer| layer["digest"].clone()).collect();
        for (layer, digest) in layers.iter_mut().zip(digests.into_iter().cycle().skip(1)) {
            layer["digest"] = digest;
        }
        let all: Vec<Value> = layers.iter().cloned().cycle().take(200).collect();
        *layers = all;
    };
    let huge = |json: &mut Value| *size(json, at) = json!(1_u64 << 62);
    let negative = |json: &mut Value| *size(json, at) = json!(-1);
    let path = |json: &mut Value| json["layers"][at]["digest"] = json!("sha256:../../../../etc/passwd");
    let absent = |json: &mut Value| json["layers"][at]["digest"] = json!(digest(b"nobody has this"));
    let named = |json: &mut Value| {
        for layer in json["layers"].as_array_mut().expect("layers") {
            layer["name"] = json!("../../../../escaped");
            layer["annotations"] = json!({"org.opencontainers.image.title": "../../../../escaped"});
        }
    };
    let cases = vec![
        changed("digests of each other", &content, shift, Expect::fails(&["sha256:"])),
        changed("too small", &content, |json| *size(json, at) = json!(10), fails()),
        changed("too large", &content, |json| *size(json, at) = json!(true_size + 10), fails()),
        changed("larger than any disk", &content, huge, Expect::fails(&[])),
        changed("less than nothing", &content, negative, Expect::fails(&["manifest"])),
        changed("a path for a digest", &content, path, Expect::fails(&["manifest"])),
        changed("a blob that nobody has", &content, absent, Expect::fails(&[&digest(b"nobody has this")[7..19]])),
        changed("names that climb", &content, named, Expect::Either),
        changed("no layers", &content, |json| json["layers"] = json!([]), Expect::fails(&[])),
        bytes("a foreign file that climbs", climbing_file(&content), Expect::fails(&[".."])),
    ];
    check_all(content, cases).await;
}

/// Returns a manifest in a third-party layout, whose only file has a path out of its folder.
fn climbing_file(content: &Content) -> String {
    let file = content.largest();
    let size = content.blobs[&file].len();
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {
            "mediaType": "application/vnd.docker.ai.model.config.v0.2+json",
            "digest": content.manifest.json["config"]["digest"],
            "size": content.manifest.json["config"]["size"],
        },
        "layers": [{
            "mediaType": "application/vnd.docker.ai.gguf.v3",
            "digest": file,
            "size": size,
            "annotations": {"org.cncf.model.filepath": "../../model.gguf"},
        }],
    })
    .to_string()
}

#[tokio::test]
async fn indexes() {
    let content = Arc::new(Content::tiny().await);
    let own = Bytes::from(content.manifest.raw.clone());
    let served = |name, document: String, expect| {
        Case::new(name, expect, move |registry: &Registry| {
            registry.document("latest", INDEX_TYPE, document.clone());
        })
    };
    // A chain of indexes, each with its predecessor as its only entry. The first one contains the
    // model.
    let chain = (0..60).fold(vec![(MANIFEST_TYPE, own.to_vec())], |mut chain, _| {
        let (media_type, document) = chain.last().expect("at least one");
        let next = index(&json!([entry(media_type, document)])).into_bytes();
        chain.push((INDEX_TYPE, next));
        chain
    });
    let chained = move |registry: &Registry| {
        for (media_type, document) in &chain {
            registry.document(&digest(document), media_type, document.clone());
        }
        registry.document("latest", INDEX_TYPE, chain.last().expect("at least one").1.clone());
    };
    // An index cannot contain its own digest. This one is served under the digest that it contains.
    let named = digest(b"an index");
    let circle = index(&json!([{"mediaType": INDEX_TYPE, "digest": named, "size": 300}]));
    let circular = move |registry: &Registry| {
        for key in ["latest", &named] {
            registry.document(key, INDEX_TYPE, circle.clone());
        }
    };
    let mut container = entry("application/vnd.oci.image.manifest.v1+json", b"an image");
    container["platform"] = json!({"os": "windows", "architecture": "mips64"});
    let cases = vec![
        served("of one model", index(&json!([entry(MANIFEST_TYPE, &own)])), Expect::Works),
        served("of nothing", index(&json!([])), Expect::fails(&[])),
        served("of what is no model", index(&json!([container])), Expect::fails(&[])),
        served("of two million", index(&json!(vec![json!({}); 2_000_000])), Expect::fails(&["4194304"])),
        Case::new("of itself", Expect::fails(&[]), circular),
        Case::new("of indexes, sixty deep", Expect::Either, chained),
    ];
    check_all(content, cases).await;
}
