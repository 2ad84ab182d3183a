//! Lists of a manifest's referrers.

use content::Algorithm::Sha256;
use content::Digest;
use reqwest::Method;
use serde_json::Value;

use super::client::{Registry, Reply, reply};
use super::data_sets::{push_blobs, put};
use super::documents::{EXAMPLE, INDEX, OTHER, Parts, Set};
use crate::support;

/// Returns the entries of a list of referrers, which must be an index on a single page.
pub(super) fn list(answer: Reply) -> Vec<Value> {
    let answer = answer.is(200).has("Content-Type", INDEX);
    assert_eq!(answer.next(), None, "{answer}");
    let index = answer.json();
    assert_eq!((index["schemaVersion"].as_u64(), index["mediaType"].as_str()), (Some(2), Some(INDEX)), "{index}");
    support::list(&index["manifests"]).to_vec()
}

/// Asserts that two lists have the same entries, in any order.
pub(super) fn same(found: &[Value], expected: &[Value], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: {found:#?}");
    for entry in expected {
        assert!(found.contains(entry), "{what}: no {entry} in {found:#?}");
    }
}

#[tokio::test]
async fn nobody_refers_to_what_is_unknown() {
    let registry = Registry::start().await;
    let digest = Digest::of(b"nothing");
    for repository in ["conformance/unheard-of", "unheard-of"] {
        assert!(list(registry.get(&format!("/v2/{repository}/referrers/{digest}")).await).is_empty());
    }
    let refused = registry.get("/v2/conformance/unheard-of/referrers/sha256:short").await.is(400);
    refused.refuses(&["DIGEST_INVALID"]);
}

#[tokio::test]
async fn filters_by_type() {
    let registry = Registry::start().await;
    let repository = "conformance/filters";
    let mut set = Set::new(Sha256, "filters");
    let subject = set.manifest(&Parts::image());
    let one = set.manifest(&Parts::artifact(EXAMPLE).about(subject.descriptor()).annotated("n", "1"));
    let two = set.manifest(&Parts::artifact(OTHER).about(subject.descriptor()).annotated("n", "2"));
    push_blobs(&registry, repository, &set).await;
    for document in [&one, &two, &subject] {
        put(&registry, repository, &document.digest.to_string(), document, &[]).await;
    }
    let path = format!("/v2/{repository}/referrers/{}", subject.digest);
    let all = registry.get(&path).await;
    assert_eq!(all.find("OCI-Filters-Applied"), None, "{all}");
    same(&list(all), &[one.referrer(), two.referrer()], &path);
    for (kind, expected) in [(EXAMPLE, vec![one.referrer()]), (OTHER, vec![two.referrer()]), ("a/b", vec![])] {
        let answer = registry.get(&format!("{path}?artifactType={kind}")).await;
        same(&list(answer.has("OCI-Filters-Applied", "artifactType")), &expected, kind);
    }
    // Another repository does not list the referrers.
    assert!(list(registry.get(&format!("/v2/conformance/others/referrers/{}", subject.digest)).await).is_empty());
    // A deleted manifest is no longer a referrer, even if it had a tag.
    registry.delete(&format!("/v2/{repository}/manifests/{}", one.digest)).await.is(202);
    same(&list(registry.get(&path).await), &[two.referrer()], &path);
    // The list remains after its subject is deleted.
    registry.delete(&format!("/v2/{repository}/manifests/{}", subject.digest)).await.is(202);
    same(&list(registry.get(&path).await), &[two.referrer()], &path);
    let head = reply(registry.ask(Method::HEAD, &path)).await.is(200).holds(b"");
    head.has("Content-Type", INDEX);
}

#[tokio::test]
async fn many_referrers_come_in_one_list() {
    let registry = Registry::start().await;
    let repository = "conformance/many-referrers";
    let mut set = Set::new(Sha256, "many");
    let subject = set.manifest(&Parts::image());
    let kinds = [EXAMPLE, OTHER].into_iter().cycle();
    for (number, kind) in (0..150).zip(kinds) {
        let parts = Parts { layers: 0, ..Parts::artifact(kind) };
        set.manifest(&parts.about(subject.descriptor()).annotated("number", &format!("{number}")));
    }
    push_blobs(&registry, repository, &set).await;
    for document in &set.documents {
        let path = format!("/v2/{repository}/manifests/{}", document.digest);
        registry.put(&path, &document.media_type, &document.bytes).await.is(201);
    }
    let expected: Vec<Value> = set.documents[1..].iter().map(super::documents::Document::referrer).collect();
    let path = format!("/v2/{repository}/referrers/{}", subject.digest);
    same(&list(registry.get(&path).await), &expected, &path);
}
