//! Every shape of manifest: pushed by digest and by tag, listed, checked with HEAD, read, referred
//! to, deleted.

use content::Algorithm::{self, Sha256, Sha512};
use content::Digest;
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{Registry, Reply, reply};
use super::documents::{
    CONFIG, DOCKER_IMAGE, DOCKER_LIST, Document, EMPTY, EXAMPLE, INDEX, LAYER, LAYER_GZIP, OTHER, Parts, Set,
};
use super::upload::{Way, push};

const ACCEPT: [&str; 4] = [INDEX, super::documents::IMAGE, DOCKER_IMAGE, DOCKER_LIST];

/// The way in which tags are set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tagging {
    /// With a PUT for each tag.
    Put,
    /// As query parameters of the PUT by digest.
    Parameter,
}

/// Runs all checks of one data set, in a repository without other content of these names.
async fn check(registry: &Registry, repository: &str, set: &Set, tagging: Tagging) {
    push_blobs(registry, repository, set).await;
    for document in &set.documents {
        let tags: Vec<&str> = set
            .tags
            .iter()
            .filter(|(_, digest)| tagging == Tagging::Parameter && *digest == document.digest)
            .map(|(tag, _)| tag.as_str())
            .collect();
        put(registry, repository, &document.digest.to_string(), document, &tags).await;
    }
    if tagging == Tagging::Put {
        for (tag, digest) in &set.tags {
            put(registry, repository, tag, set.document(digest), &[]).await;
        }
    }
    listed(registry, repository, set).await;
    readable(registry, repository, set).await;
    referred(registry, repository, set).await;
    deleted(registry, repository, set).await;
}

/// Pushes the blobs, each in another way than the one before.
pub(super) async fn push_blobs(registry: &Registry, repository: &str, set: &Set) {
    for (blob, way) in set.blobs.iter().zip(Way::ALL.into_iter().cycle()) {
        push(registry, repository, blob, way).await;
    }
}

/// Puts a document and reads it from the returned `Location`.
pub(super) async fn put(registry: &Registry, repository: &str, name: &str, document: &Document, tags: &[&str]) {
    let query: Vec<String> = tags.iter().map(|tag| format!("tag={tag}")).collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let path = format!("/v2/{repository}/manifests/{name}{query}");
    let done = registry.put(&path, &document.media_type, &document.bytes).await.is(201);
    let done = done.has("Docker-Content-Digest", &document.digest.to_string());
    let subject = document.subject.map(|subject| subject.to_string());
    assert_eq!(done.find("OCI-Subject"), subject.as_deref(), "{done}");
    let given = done.words("OCI-Tag");
    assert!(tags.iter().all(|tag| given.iter().any(|word| word == tag)), "{done}: expected {tags:?}");
    is_document(reply(accepting(registry.ask_at(Method::GET, &done.location()))).await, document, true);
}

/// Adds `Accept` headers for all supported types.
pub(super) fn accepting(request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
    ACCEPT.iter().fold(request, |request, kind| request.header("Accept", *kind))
}

fn is_document(answer: Reply, document: &Document, whole: bool) {
    answer
        .is(200)
        .has("Content-Type", &document.media_type)
        .has("Content-Length", &document.bytes.len().to_string())
        .has("Docker-Content-Digest", &document.digest.to_string())
        .holds(if whole { &document.bytes } else { &[] });
}

/// Checks that the list has all tags, and that paging with `last` returns the remaining ones.
async fn listed(registry: &Registry, repository: &str, set: &Set) {
    let path = format!("/v2/{repository}/tags/list");
    let tags = |answer: &Reply| -> Vec<String> {
        let tags = answer.json()["tags"].as_array().cloned().unwrap_or_default();
        tags.iter().map(|tag| tag.as_str().expect("a tag").to_owned()).collect()
    };
    let all = tags(&registry.get(&path).await.any_of(if set.tags.is_empty() { &[200, 404] } else { &[200] }));
    for (tag, _) in &set.tags {
        assert!(all.contains(tag), "{tag} of {all:?}");
    }
    let half = all.len() / 2;
    if half > 0 {
        let rest = tags(&registry.get(&format!("{path}?last={}", all[half - 1])).await.is(200));
        assert_eq!(rest, all[half..], "after {}", all[half - 1]);
    }
}

async fn readable(registry: &Registry, repository: &str, set: &Set) {
    let digests = set.documents.iter().map(|document| (document.digest.to_string(), document));
    let tags = set.tags.iter().map(|(tag, digest)| (tag.clone(), set.document(digest)));
    for (name, document) in digests.chain(tags) {
        let path = format!("/v2/{repository}/manifests/{name}");
        for (method, whole) in [(Method::HEAD, false), (Method::GET, true)] {
            is_document(reply(accepting(registry.ask(method, &path))).await, document, whole);
        }
    }
    for blob in &set.blobs {
        let path = format!("/v2/{repository}/blobs/{}", blob.digest);
        let (size, digest) = (blob.bytes.len().to_string(), blob.digest.to_string());
        let head = registry.head(&path).await.is(200).holds(b"");
        head.has("Content-Length", &size).has("Docker-Content-Digest", &digest);
        registry.get(&path).await.is(200).holds(&blob.bytes).has("Docker-Content-Digest", &digest);
    }
}

/// Checks the referrers of each subject, all of them and by artifact type.
async fn referred(registry: &Registry, repository: &str, set: &Set) {
    let subjects: Vec<Digest> = set.documents.iter().filter_map(|document| document.subject).collect();
    for subject in subjects {
        let expected: Vec<Value> =
            set.documents.iter().filter(|document| document.subject == Some(subject)).map(Document::referrer).collect();
        let path = format!("/v2/{repository}/referrers/{subject}");
        let found = super::referrers::list(registry.get(&path).await);
        super::referrers::same(&found, &expected, &path);
        for kind in expected.iter().filter_map(|entry| entry["artifactType"].as_str()) {
            let path = format!("{path}?artifactType={}", kind.replace('+', "%2B"));
            let answer = registry.get(&path).await;
            assert!(answer.words("OCI-Filters-Applied").iter().any(|word| word == "artifactType"), "{answer}");
            let of_kind: Vec<Value> = expected.iter().filter(|entry| entry["artifactType"] == kind).cloned().collect();
            super::referrers::same(&super::referrers::list(answer), &of_kind, &path);
        }
    }
}

/// Deletes tags, then documents from the outermost inwards, then blobs. Each is gone at once.
async fn deleted(registry: &Registry, repository: &str, set: &Set) {
    for (tag, digest) in &set.tags {
        let path = format!("/v2/{repository}/manifests/{tag}");
        registry.delete(&path).await.is(202);
        registry.head(&path).await.is(404);
        // Deleting a tag leaves its manifest.
        registry.head(&format!("/v2/{repository}/manifests/{digest}")).await.is(200);
    }
    for document in set.documents.iter().rev() {
        let path = format!("/v2/{repository}/manifests/{}", document.digest);
        registry.delete(&path).await.is(202);
        registry.head(&path).await.is(404);
        registry.get(&path).await.is(404).refuses(&["MANIFEST_UNKNOWN"]);
    }
    for blob in &set.blobs {
        let path = format!("/v2/{repository}/blobs/{}", blob.digest);
        registry.delete(&path).await.is(202);
        registry.head(&path).await.is(404);
    }
    for subject in set.documents.iter().filter_map(|document| document.subject) {
        let answer = registry.get(&format!("/v2/{repository}/referrers/{subject}")).await;
        assert_eq!(super::referrers::list(answer), Vec::<Value>::new());
    }
}

fn set(algorithm: Algorithm, label: &str, fill: impl FnOnce(&mut Set)) -> Set {
    let mut set = Set::new(algorithm, label);
    fill(&mut set);
    set
}

#[tokio::test]
async fn images() {
    let registry = Registry::start().await;
    let image = set(Sha256, "image", |set| {
        let image = set.manifest(&Parts::image());
        set.tag("image", &image);
    });
    let uncompressed = set(Sha256, "image-uncompressed", |set| {
        let image = set.manifest(&Parts { layer: LAYER, ..Parts::image() });
        set.tag("image-uncompressed", &image);
        set.tag("image-uncompressed-again", &image);
    });
    let large = set(Sha256, "large-manifest", |set| {
        let mut parts = Parts::image();
        for number in 0..390 {
            parts = parts.annotated(&format!("large-annotation-{number}"), &"A".repeat(10_000));
        }
        let image = set.manifest(&parts);
        set.tag("large-manifest", &image);
    });
    let bare = set(Sha256, "no-layers", |set| {
        let image = set.manifest(&Parts { layers: 0, ..Parts::image() });
        set.tag("no-layers", &image);
    });
    for set in [image, uncompressed, large, bare] {
        check(&registry, "conformance/images", &set, Tagging::Put).await;
    }
}

#[tokio::test]
async fn indexes() {
    let registry = Registry::start().await;
    let index = set(Sha256, "index", |set| {
        let index = set.index_of_two(&Parts::image());
        set.tag("index", &index);
    });
    let nested = set(Sha256, "nested-index", |set| {
        let inner = [set.index_of_two(&Parts::image()), set.index_of_two(&Parts::image())];
        let outer = set.index(&Parts::image(), &inner);
        set.tag("index-of-index", &outer);
    });
    let empty = set(Sha256, "empty-index", |set| {
        let index = set.index(&Parts::image(), &[]);
        set.tag("index", &index);
    });
    for set in [index, nested, empty] {
        check(&registry, "conformance/indexes", &set, Tagging::Put).await;
    }
}

#[tokio::test]
async fn artifacts() {
    let registry = Registry::start().await;
    let artifact = set(Sha256, "artifact", |set| {
        let artifact = set.manifest(&Parts::artifact(EXAMPLE));
        set.tag("artifact", &artifact);
    });
    let index = set(Sha256, "artifact-index", |set| {
        let index = set.index_of_two(&Parts::artifact(EXAMPLE));
        set.tag("artifact-index", &index);
    });
    let bare = set(Sha256, "artifact-without-layers", |set| {
        let empty = set.blob(EMPTY, b"{}");
        let artifact = set.manifest_of(&Parts::artifact(EXAMPLE), &empty, std::slice::from_ref(&empty));
        set.tag("artifact-without-layers", &artifact);
    });
    for set in [artifact, index, bare] {
        check(&registry, "conformance/artifacts", &set, Tagging::Put).await;
    }
}

#[tokio::test]
async fn subjects() {
    let registry = Registry::start().await;
    let about = |kind, subject: &Value, number: &str| {
        let parts = Parts::artifact(kind).about(subject.clone()).annotated("org.example.conformance", "hello");
        parts.annotated(&format!("org.example.{number}"), number)
    };
    let artifacts = set(Sha256, "artifacts-with-subject", |set| {
        let image = set.manifest(&Parts::image());
        set.tag("image", &image);
        let subject = image.descriptor();
        // Its artifact type is the media type of its config.
        set.manifest(&Parts::image().about(subject.clone()));
        let one = set.manifest(&about(EXAMPLE, &subject, "one"));
        set.tag("tagged-artifact1", &one);
        let two = set.manifest(&about(OTHER, &subject, "two"));
        set.tag("tagged-artifact2", &two);
    });
    let index = set(Sha256, "index-with-subject", |set| {
        let index = set.index_of_two(&Parts::image());
        set.tag("index", &index);
        let artifact = set.index_of_two(&about(EXAMPLE, &index.descriptor(), "index"));
        set.tag("tagged-artifact", &artifact);
    });
    let missing = set(Sha256, "missing-subject", |set| {
        let subject = json!({"mediaType": super::documents::IMAGE, "size": 123,
            "digest": Digest::of(b"missing content").to_string()});
        let artifact = set.manifest(&about(EXAMPLE, &subject, "missing"));
        set.tag("tagged-artifact", &artifact);
    });
    for set in [artifacts, index, missing] {
        check(&registry, "conformance/subjects", &set, Tagging::Put).await;
    }
}

/// Descriptors that carry their content in base64.
fn data_field() -> Set {
    set(Sha256, "data-field", |set| {
        let mut config = set.blob(CONFIG, b"{}");
        config["data"] = "e30=".into();
        let mut layer = set.blob(LAYER, b"hello conformance");
        layer["data"] = "aGVsbG8gY29uZm9ybWFuY2U=".into();
        let image = set.manifest_of(&Parts::image(), &config, &[layer]);
        set.tag("data-field", &image);
    })
}

/// Layers that are stored elsewhere and never pushed.
fn non_distributable() -> Set {
    set(Sha256, "non-distributable-layers", |set| {
        let elsewhere = |kind: &str, size: u64| {
            let digest = Digest::of(kind.as_bytes());
            json!({"mediaType": kind, "digest": digest.to_string(), "size": size,
                "urls": [format!("https://store.example.com/blobs/sha256/{}", digest.hex())]})
        };
        let bytes = set.unique(300);
        let layers = [
            elsewhere("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", 123_456),
            elsewhere("application/vnd.oci.image.layer.nondistributable.v1.tar", 12_345),
            set.blob(LAYER_GZIP, &bytes),
        ];
        let config = set.blob(CONFIG, br#"{"architecture":"amd64","os":"linux"}"#);
        let image = set.manifest_of(&Parts::image(), &config, &layers);
        set.tag("non-distributable-image", &image);
    })
}

/// Fields that no specification defines, and JSON that is not written compactly.
fn custom_fields() -> Set {
    set(Sha256, "custom-fields", |set| {
        let odd = vec![("org.example.unknown", json!({"deep": [1, 2.50, "ü", null]}))];
        let parts = Parts { fields: odd, ..Parts::image() };
        let index = set.index_of_two(&parts);
        set.tag("custom-fields", &index);
        let plain = set.manifest(&parts);
        let value: Value = serde_json::from_slice(&plain.bytes).expect("JSON");
        let mut spaced = serde_json::to_vec_pretty(&value).expect("JSON");
        spaced.extend_from_slice(b"\r\n \t");
        set.documents.push(Document::of_bytes(Sha256, spaced.clone()));
        let pretty = Document::of_bytes(Sha256, spaced);
        set.tag("pretty", &pretty);
    })
}

#[tokio::test]
async fn unusual_fields() {
    let registry = Registry::start().await;
    for set in [data_field(), non_distributable(), custom_fields()] {
        check(&registry, "conformance/unusual", &set, Tagging::Put).await;
    }
}

#[tokio::test]
async fn sha512() {
    let registry = Registry::start().await;
    let set = set(Sha512, "sha512", |set| {
        let index = set.index_of_two(&Parts::image());
        set.manifest(&Parts::artifact(EXAMPLE).about(index.descriptor()));
    });
    check(&registry, "conformance/sha512", &set, Tagging::Put).await;
}

#[tokio::test]
async fn tags_as_parameters() {
    let registry = Registry::start().await;
    for algorithm in [Sha256, Sha512] {
        let label = format!("tag-param-{}", algorithm.name());
        let set = set(algorithm, &label, |set| {
            let index = set.index_of_two(&Parts::image());
            set.tag(&label, &index);
            for (number, document) in set.documents.clone().iter().enumerate() {
                set.tag(&format!("{label}-{number}"), document);
            }
        });
        check(&registry, "conformance/parameters", &set, Tagging::Parameter).await;
    }
}

#[tokio::test]
async fn a_wrong_digest() {
    let registry = Registry::start().await;
    for algorithm in [Sha256, Sha512] {
        let mut set = set(algorithm, "bad-digest-image", |set| {
            set.manifest(&Parts::image());
        });
        push_blobs(&registry, "conformance/bad", &set).await;
        let mut document = set.documents.remove(0);
        document.bytes.extend_from_slice(b"  ");
        let path = format!("/v2/conformance/bad/manifests/{}", document.digest);
        let refused = registry.put(&path, &document.media_type, &document.bytes).await;
        refused.is(400).refuses(&["DIGEST_INVALID"]);
        registry.get(&path).await.is(404);
    }
}

/// The specification leaves sparse images to the server. This registry refuses an image whose
/// layers were not pushed.
#[tokio::test]
async fn sparse() {
    let registry = Registry::start().await;
    let mut image = set(Sha256, "sparse-image", |set| {
        set.manifest(&Parts::image());
    });
    let layer = image.blobs.remove(0);
    push_blobs(&registry, "conformance/sparse", &image).await;
    let path = "/v2/conformance/sparse/manifests/sparse";
    let document = &image.documents[0];
    for name in ["sparse", &document.digest.to_string()] {
        let path = format!("/v2/conformance/sparse/manifests/{name}");
        let refused = registry.put(&path, &document.media_type, &document.bytes).await;
        refused.is(400).refuses(&["MANIFEST_BLOB_UNKNOWN"]);
        registry.head(&path).await.is(404);
    }
    push(&registry, "conformance/sparse", &layer, Way::PostPut).await;
    registry.put(path, &document.media_type, &document.bytes).await.is(201);

    // A blob in another repository does not count.
    let refused = registry.put("/v2/conformance/other/manifests/sparse", &document.media_type, &document.bytes).await;
    refused.is(400).refuses(&["MANIFEST_BLOB_UNKNOWN"]);
}

/// With `LODE_REGISTRY_SPARSE`, the daemon accepts images that lack layers, as partial mirrors
/// need.
#[tokio::test]
async fn sparse_images_where_they_are_wanted() {
    let Some(registry) = Registry::daemon("conformance::data_sets::sparse_images_where_they_are_wanted").await else {
        return;
    };
    let registry = registry.restart_with(&[("LODE_REGISTRY_SPARSE", "1")]).await;
    let mut image = set(Sha256, "sparse-image", |set| {
        set.manifest(&Parts::image());
    });
    let layer = image.blobs.remove(0);
    push_blobs(&registry, "conformance/sparse", &image).await;
    let (path, document) = ("/v2/conformance/sparse/manifests/sparse", &image.documents[0]);
    registry.put(path, &document.media_type, &document.bytes).await.is(201);
    registry.head(path).await.is(200);
    registry.get(&format!("/v2/conformance/sparse/blobs/{}", layer.digest)).await.is(404);
    push(&registry, "conformance/sparse", &layer, Way::PostPut).await;
    registry.get(&format!("/v2/conformance/sparse/blobs/{}", layer.digest)).await.is(200);
}

/// An index may name platforms that the registry does not have: mirrors copy only the platforms
/// that they need.
#[tokio::test]
async fn sparse_indexes() {
    let registry = Registry::start().await;
    let mut set = set(Sha256, "sparse-index", |set| {
        let index = set.index_of_two(&Parts::image());
        set.tag("sparse-index", &index);
    });
    set.documents.remove(1);
    check(&registry, "conformance/sparse-index", &set, Tagging::Put).await;
}
