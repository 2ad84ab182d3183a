//! Manifests: refusals and their reasons, the size limit, manifests of other tools, conditional
//! requests.

use content::{Algorithm::Sha256, Digest};
use reqwest::Method;
use serde_json::json;

use super::client::{Registry, reply};
use super::data_sets::{push_blobs, put};
use super::documents::{DOCKER_IMAGE, DOCKER_LIST, Document, IMAGE, INDEX, Parts, Set};
use super::upload::{Way, push};

/// The size of a manifest that a registry must accept, in bytes.
const LARGEST: usize = 4 << 20;

#[tokio::test]
async fn the_root_says_which_protocol_it_speaks() {
    let registry = Registry::start().await;
    let root = registry.get("/v2/").await.is(200).has("Docker-Distribution-API-Version", "registry/2.0");
    assert!(root.json().is_object(), "{root}");
    registry.head("/v2/").await.is(200).holds(b"");
    registry.get("/v2").await.any_of(&[200, 301, 307, 308]);
}

#[tokio::test]
async fn missing_manifests() {
    let registry = Registry::start().await;
    let mut set = Set::new(Sha256, "missing");
    let image = set.manifest(&Parts::image());
    push_blobs(&registry, "conformance/missing", &set).await;
    put(&registry, "conformance/missing", "here", &image, &[]).await;
    for repository in ["conformance/missing", "conformance/nowhere"] {
        for name in ["nothing", &Digest::of(b"nothing").to_string()] {
            let path = format!("/v2/{repository}/manifests/{name}");
            registry.get(&path).await.is(404).refuses(&["MANIFEST_UNKNOWN", "NAME_UNKNOWN"]);
            registry.head(&path).await.is(404).holds(b"");
            registry.delete(&path).await.is(404).refuses(&["MANIFEST_UNKNOWN", "NAME_UNKNOWN"]);
        }
    }
    // A blob cannot be read as a manifest.
    let blob = &set.blobs[0];
    registry.get(&format!("/v2/conformance/missing/manifests/{}", blob.digest)).await.is(404);
}

#[tokio::test]
async fn malformed_digests() {
    let registry = Registry::start().await;
    let mut set = Set::new(Sha256, "malformed");
    let image = set.manifest(&Parts::image());
    push_blobs(&registry, "conformance/malformed", &set).await;
    let hex = image.digest.hex();
    for name in [
        "sha256:baddigeststring".to_owned(),
        format!("sha256:{}", hex.to_uppercase()),
        format!("sha256:{hex}0"),
        format!("sha256:{}", &hex[1..]),
        format!("sha512:{hex}"),
        format!("md5:{hex}"),
        format!("sha999:{hex}"),
        format!("sha256+b64:{hex}"),
        "sha256:".to_owned(),
        ":".to_owned(),
    ] {
        let path = format!("/v2/conformance/malformed/manifests/{name}");
        let codes = ["DIGEST_INVALID", "MANIFEST_INVALID", "MANIFEST_UNKNOWN", "UNSUPPORTED", "NAME_INVALID"];
        registry.put(&path, &image.media_type, &image.bytes).await.is(400).refuses(&codes);
        registry.get(&path).await.any_of(&[400, 404]).refuses(&codes);
        registry.delete(&path).await.any_of(&[400, 404]).refuses(&codes);
        let path = format!("/v2/conformance/malformed/blobs/{name}");
        let codes = ["DIGEST_INVALID", "BLOB_UNKNOWN", "UNSUPPORTED"];
        registry.get(&path).await.any_of(&[400, 404]).refuses(&codes);
        registry.head(&path).await.any_of(&[400, 404]).holds(b"");
        registry.delete(&path).await.any_of(&[400, 404]).refuses(&codes);
        let name = name.replace('+', "%2B");
        let path = format!("/v2/conformance/malformed/blobs/uploads/?digest={name}");
        reply(registry.ask(Method::POST, &path).body("bytes")).await.is(400).refuses(&codes);
        let path = format!("/v2/conformance/malformed/blobs/uploads/?mount={name}&from=conformance/other");
        registry.post(&path).await.any_of(&[202, 400]);
    }
}

#[tokio::test]
async fn malformed_manifests() {
    let registry = Registry::start().await;
    let missing = Digest::of(b"missing").to_string();
    let entry = json!({"mediaType": "a/b", "digest": "sha256:short", "size": 1});
    let negative = json!({"mediaType": "a/b", "digest": missing, "size": -1});
    let documents: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"{".to_vec(),
        b"[]".to_vec(),
        b"null".to_vec(),
        b"\"text\"".to_vec(),
        b"\xff\xfe".to_vec(),
        b"{}".to_vec(),
        b"{\"schemaVersion\":1,\"fsLayers\":[]}".to_vec(),
        "[".repeat(100_000).into_bytes(),
        json!({"schemaVersion": 2, "mediaType": IMAGE, "config": entry, "layers": []}).to_string().into_bytes(),
        json!({"schemaVersion": 2, "mediaType": IMAGE, "config": negative, "layers": []}).to_string().into_bytes(),
        json!({"schemaVersion": 2, "mediaType": IMAGE, "layers": "none"}).to_string().into_bytes(),
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).to_string().into_bytes(),
    ];
    for document in documents {
        let refused = registry.put("/v2/conformance/broken/manifests/latest", IMAGE, &document).await.is(400);
        refused.refuses(&["MANIFEST_INVALID", "DIGEST_INVALID"]);
    }
    registry.get("/v2/conformance/broken/manifests/latest").await.is(404);
}

#[tokio::test]
async fn the_largest_manifest() {
    let registry = Registry::start().await;
    let repository = "conformance/large";
    let mut set = Set::new(Sha256, "large");
    let small = set.manifest(&Parts::image().annotated("pad", ""));
    push_blobs(&registry, repository, &set).await;
    let padded = |size: usize| {
        let text = String::from_utf8(small.bytes.clone()).expect("text");
        let pad = "x".repeat(size - text.len());
        Document::of_bytes(Sha256, text.replace(r#""pad":"""#, &format!(r#""pad":"{pad}""#)).into_bytes())
    };
    let largest = padded(LARGEST);
    assert_eq!(largest.bytes.len(), LARGEST);
    put(&registry, repository, "largest", &largest, &[]).await;
    let larger = padded(LARGEST + 1);
    for size in [Some(larger.bytes.len()), None] {
        let path = format!("/v2/{repository}/manifests/larger");
        let request = registry.ask(Method::PUT, &path).header("Content-Type", IMAGE);
        // Sends the body with and without a `Content-Length`.
        let request = match size {
            Some(_) => request.body(larger.bytes.clone()),
            None => request.body(reqwest::Body::wrap_stream(futures_util::stream::iter(
                larger.bytes.chunks(100_000).map(|part| Ok::<_, std::io::Error>(part.to_vec())).collect::<Vec<_>>(),
            ))),
        };
        reply(request).await.is(413).refuses(&["MANIFEST_INVALID", "SIZE_INVALID", "UNSUPPORTED"]);
        registry.get(&path).await.is(404);
    }
}

#[tokio::test]
async fn manifests_of_other_tools_stay_as_they_are() {
    let registry = Registry::start().await;
    let repository = "conformance/docker";
    let mut set = Set::new(Sha256, "docker");
    let mut tensor = set.blob("application/vnd.ollama.image.tensor", b"tensor");
    tensor["name"] = "model.layers.0.mlp.up_proj.weight".into();
    tensor["from"] = "/root/.ollama/models/blobs/x".into();
    let template = set.blob("application/vnd.ollama.image.template", b"{{ .Prompt }}");
    let config = set.blob("application/vnd.docker.container.image.v1+json", b"{\"model_format\":\"safetensors\"}");
    let image = Document::new(
        Sha256,
        &json!({"schemaVersion": 2, "mediaType": DOCKER_IMAGE, "config": config, "layers": [tensor, template]}),
    );
    let list = Document::new(
        Sha256,
        &json!({"schemaVersion": 2, "mediaType": DOCKER_LIST, "manifests": [image.descriptor()]}),
    );
    // Without a `mediaType` field, the document has the type of the push's `Content-Type`.
    let untyped = Document::new(Sha256, &json!({"schemaVersion": 2, "config": config, "layers": [template, template]}));
    push_blobs(&registry, repository, &set).await;
    for (name, document) in [("image", &image), ("list", &list), ("untyped", &untyped)] {
        put(&registry, repository, name, document, &[]).await;
        put(&registry, repository, &document.digest.to_string(), document, &[]).await;
        // Whatever the client accepts, the registry never converts a document to another type.
        for accept in [document.media_type.as_str(), "*/*", "application/json", IMAGE] {
            let path = format!("/v2/{repository}/manifests/{name}");
            let answer = reply(registry.ask(Method::GET, &path).header("Accept", accept)).await;
            let answer = answer.is(200).holds(&document.bytes).has("Content-Type", &document.media_type);
            answer.has("Docker-Content-Digest", &document.digest.to_string());
        }
    }
}

#[tokio::test]
async fn a_type_that_is_no_manifest_is_refused() {
    let registry = Registry::start().await;
    let mut set = Set::new(Sha256, "types");
    let image = set.manifest(&Parts::image());
    push_blobs(&registry, "conformance/types", &set).await;
    // The `Content-Type` contradicts the document's `mediaType`.
    let refused = registry.put("/v2/conformance/types/manifests/x", INDEX, &image.bytes).await.is(400);
    refused.refuses(&["MANIFEST_INVALID"]);
    registry.get("/v2/conformance/types/manifests/x").await.is(404);
}

#[tokio::test]
async fn conditional_requests() {
    let registry = Registry::start().await;
    let repository = "conformance/conditional";
    let mut set = Set::new(Sha256, "conditional");
    let image = set.manifest(&Parts::image());
    push_blobs(&registry, repository, &set).await;
    put(&registry, repository, "latest", &image, &[]).await;
    for path in [
        format!("/v2/{repository}/manifests/latest"),
        format!("/v2/{repository}/manifests/{}", image.digest),
        format!("/v2/{repository}/blobs/{}", set.blobs[0].digest),
    ] {
        for method in [Method::GET, Method::HEAD] {
            let plain = reply(registry.ask(method.clone(), &path)).await.is(200);
            let tag = plain.header("ETag");
            assert!(tag.len() > 2 && tag.starts_with('"') && tag.ends_with('"'), "{plain}: a strong ETag is quoted");
            for same in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".to_owned()] {
                let request = registry.ask(method.clone(), &path).header("If-None-Match", &same);
                reply(request).await.is(304).holds(b"").has("ETag", &tag);
            }
            let request = registry.ask(method.clone(), &path).header("If-None-Match", "\"something else\"");
            reply(request).await.is(200).holds(&plain.body).has("ETag", &tag);
        }
    }
}

#[tokio::test]
async fn a_blob_that_a_manifest_needs_stays() {
    let registry = Registry::start().await;
    let repository = "conformance/needed";
    let mut set = Set::new(Sha256, "needed");
    let image = set.manifest(&Parts::image());
    push_blobs(&registry, repository, &set).await;
    put(&registry, repository, &image.digest.to_string(), &image, &[]).await;
    for blob in &set.blobs {
        let path = format!("/v2/{repository}/blobs/{}", blob.digest);
        registry.delete(&path).await.is(405).refuses(&["DENIED", "UNSUPPORTED"]);
        registry.get(&path).await.is(200).holds(&blob.bytes);
    }
    registry.delete(&format!("/v2/{repository}/manifests/{}", image.digest)).await.is(202);
    for blob in &set.blobs {
        registry.delete(&format!("/v2/{repository}/blobs/{}", blob.digest)).await.is(202);
    }
}

#[tokio::test]
async fn methods_that_are_not_there() {
    let registry = Registry::start().await;
    let blob = super::client::Blob::sample(Sha256, "methods", 100);
    push(&registry, "conformance/methods", &blob, Way::PostPut).await;
    for (method, path) in [
        (Method::POST, "/v2/conformance/methods/tags/list".to_owned()),
        (Method::DELETE, "/v2/_catalog".to_owned()),
        (Method::PUT, "/v2/".to_owned()),
        (Method::POST, format!("/v2/conformance/methods/manifests/{}", blob.digest)),
        (Method::PUT, format!("/v2/conformance/methods/blobs/{}", blob.digest)),
        (Method::PATCH, "/v2/conformance/methods/blobs/uploads/".to_owned()),
    ] {
        reply(registry.ask(method, &path)).await.any_of(&[404, 405]);
    }
    for path in ["/v2/conformance", "/v2/conformance/methods/", "/v2/conformance/methods/layers/x", "/v2//tags/list"] {
        registry.get(path).await.any_of(&[400, 404]);
    }
}
