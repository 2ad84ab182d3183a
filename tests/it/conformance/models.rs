//! The daemon's models over the protocol: any client can pull a created model, and a pushed model
//! can be used.

use std::collections::BTreeMap;

use manifests::Manifest;
use serde_json::{Value, json};

use super::client::{Blob, Registry};
use super::upload::{Way, push};
use crate::support::{list, tiny_model};

/// Returns a model's media type, its manifest, and its blobs by digest, as any client pulls them.
async fn pull(registry: &Registry, repository: &str) -> (String, Manifest, BTreeMap<String, Vec<u8>>) {
    let answer = registry.get(&format!("/v2/{repository}/manifests/latest")).await.is(200);
    let manifest = Manifest::parse(&answer.body).expect("a manifest");
    let answer = answer.has("Docker-Content-Digest", &manifest.digest().to_string());
    let kind = answer.header("Content-Type");
    let mut blobs = BTreeMap::new();
    let descriptors = manifest.layers().iter().map(|layer| (*layer.digest(), layer.size()));
    for (digest, size) in descriptors.chain([(manifest.config().digest, manifest.config().size)]) {
        let blob = registry.get(&format!("/v2/{repository}/blobs/{digest}")).await.is(200);
        assert_eq!(content::Digest::of(&blob.body), digest);
        assert_eq!(blob.body.len() as u64, size, "{digest}");
        blobs.insert(digest.to_string(), blob.body);
    }
    (kind, manifest, blobs)
}

async fn model_names(registry: &Registry) -> Vec<String> {
    let tags = registry.get("/api/tags").await.is(200).json();
    list(&tags["models"]).iter().map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn a_created_model_can_be_pulled() {
    let Some(registry) = Registry::daemon("conformance::models::a_created_model_can_be_pulled").await else { return };
    registry.server().create("tiny", &tiny_model()).await;
    let (_, manifest, blobs) = pull(&registry, "library/tiny").await;
    assert!(manifest.layers().len() > 10 && blobs.len() > 10, "{} layers", manifest.layers().len());
    assert_eq!(pull(&registry, "tiny").await.1.raw(), manifest.raw());
    let tags = registry.get("/v2/library/tiny/tags/list").await.is(200).json();
    assert_eq!(tags["tags"], json!(["latest"]));
    let catalog = registry.get("/v2/_catalog").await.is(200).json();
    assert_eq!(list(&catalog["repositories"]).len(), 1, "{catalog}");
    // A repository does not serve blobs that it does not have, even if another one has them.
    let other = Blob::sample(content::Algorithm::Sha256, "other", 100);
    push(&registry, "library/other", &other, Way::PostPut).await;
    registry.get(&format!("/v2/library/tiny/blobs/{}", other.digest)).await.is(404);
}

#[tokio::test]
async fn a_pushed_model_can_be_used() {
    let Some(source) = Registry::daemon("conformance::models::a_pushed_model_can_be_used").await else { return };
    source.server().create("tiny", &tiny_model()).await;
    let (kind, manifest, blobs) = pull(&source, "library/tiny").await;
    let Some(target) = Registry::daemon("conformance::models::a_pushed_model_can_be_used").await else { return };
    for (bytes, way) in blobs.values().zip(Way::ALL.into_iter().cycle()) {
        push(&target, "library/pushed", &Blob::new(content::Algorithm::Sha256, bytes), way).await;
    }
    assert_eq!(model_names(&target).await, Vec::<String>::new());
    let path = "/v2/library/pushed/manifests/latest";
    target.put(path, &kind, manifest.raw()).await.is(201).has("Docker-Content-Digest", &manifest.digest().to_string());
    assert_eq!(model_names(&target).await, ["pushed:latest"]);
    let details = |answer: Value| answer["details"].clone();
    let (ours, theirs) = (json!({"model": "pushed"}), json!({"model": "tiny"}));
    let shown = details(target.server().ask("/api/show", &ours).await);
    assert_eq!(shown, details(source.server().ask("/api/show", &theirs).await));
    let generate = |model: &str| {
        json!({"model": model, "prompt": "Hello", "raw": true, "stream": false,
            "options": {"temperature": 0, "num_predict": 8}})
    };
    let here = target.server().ask("/api/generate", &generate("pushed")).await;
    let there = source.server().ask("/api/generate", &generate("tiny")).await;
    assert_eq!(here["response"], there["response"]);
    // Deleting the tag deletes the model.
    target.delete(path).await.is(202);
    assert_eq!(model_names(&target).await, Vec::<String>::new());
    target.server().call("/api/show", &ours).await;
}

/// An artifact that is no model is stored like any other, and does not disturb the list of models.
#[tokio::test]
async fn what_is_no_model_does_not_disturb() {
    let Some(registry) = Registry::daemon("conformance::models::what_is_no_model_does_not_disturb").await else {
        return;
    };
    registry.server().create("tiny", &tiny_model()).await;
    let mut set = super::documents::Set::new(content::Algorithm::Sha256, "no model");
    let parts = super::documents::Parts::artifact(super::documents::EXAMPLE);
    let artifact = set.manifest(&parts);
    let index = set.index(&parts, std::slice::from_ref(&artifact));
    super::data_sets::push_blobs(&registry, "library/artifact", &set).await;
    super::data_sets::put(&registry, "library/artifact", "latest", &artifact, &[]).await;
    super::data_sets::put(&registry, "library/artifact", "index", &index, &[]).await;
    assert!(model_names(&registry).await.contains(&"tiny:latest".to_owned()));
    for model in ["artifact", "artifact:index"] {
        registry.server().call("/api/show", &json!({"model": model})).await;
        let (status, answer) = registry.server().call("/api/generate", &json!({"model": model, "prompt": "x"})).await;
        assert!(status >= 400 && answer["error"].is_string(), "{model}: {status} {answer}");
    }
    let prompt = json!({"model": "tiny", "prompt": "x", "raw": true, "stream": false, "options": {"num_predict": 2}});
    registry.server().ask("/api/generate", &prompt).await;
}

/// Between the blobs and the manifest of a push, another client deletes a model, and the daemon
/// collects garbage. The pushed blobs survive.
#[tokio::test]
async fn a_collection_leaves_a_push_alone() {
    let Some(registry) = Registry::daemon("conformance::models::a_collection_leaves_a_push_alone").await else {
        return;
    };
    let repository = "library/in-between";
    let mut set = super::documents::Set::new(content::Algorithm::Sha256, "in between");
    let image = set.manifest(&super::documents::Parts::image());
    let about = super::documents::Parts::artifact(super::documents::EXAMPLE).about(image.descriptor());
    let artifact = set.manifest(&about);
    let late = Blob::sample(content::Algorithm::Sha256, "late", 5000);
    super::data_sets::push_blobs(&registry, repository, &set).await;
    let place = super::upload::begin(&registry, repository).await;
    let first = super::upload::chunk(registry.ask_at(reqwest::Method::PATCH, &place), &late, 0, 3000);
    let place = super::client::reply(first).await.is(202).location();
    create_and_delete(&registry, "one").await;
    // A manifest without a tag, and an artifact whose subject is that manifest.
    for document in [&image, &artifact] {
        super::data_sets::put(&registry, repository, &document.digest.to_string(), document, &[]).await;
    }
    create_and_delete(&registry, "two").await;
    let rest = super::upload::chunk(super::upload::finish(&registry, &place, &late), &late, 3000, 5000);
    super::upload::created(&registry, super::client::reply(rest).await, &late).await;
    create_and_delete(&registry, "three").await;
    for blob in set.blobs.iter().chain([&late]) {
        registry.get(&format!("/v2/{repository}/blobs/{}", blob.digest)).await.is(200).holds(&blob.bytes);
    }
    for document in [&image, &artifact] {
        let path = format!("/v2/{repository}/manifests/{}", document.digest);
        registry.get(&path).await.is(200).holds(&document.bytes);
    }
    let referrers = registry.get(&format!("/v2/{repository}/referrers/{}", image.digest)).await;
    assert_eq!(super::referrers::list(referrers), [artifact.referrer()]);
}

async fn create_and_delete(registry: &Registry, name: &str) {
    registry.server().create(name, &tiny_model()).await;
    let request = registry.ask(reqwest::Method::DELETE, "/api/delete").json(&json!({"model": name}));
    super::client::reply(request).await.is(200);
}
