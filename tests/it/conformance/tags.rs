//! Lists of tags and of repositories, with paging.

use content::Algorithm::Sha256;
use reqwest::Method;

use super::client::{Registry, Reply, reply};
use super::data_sets::push_blobs;
use super::documents::{Document, Parts, Set};
use crate::support;

/// Pushes an image under tags, and returns the image.
async fn push_tagged(registry: &Registry, repository: &str, tags: &[&str]) -> Document {
    let mut set = Set::new(Sha256, repository);
    let image = set.manifest(&Parts::image());
    push_blobs(registry, repository, &set).await;
    for tag in tags {
        let path = format!("/v2/{repository}/manifests/{tag}");
        registry.put(&path, &image.media_type, &image.bytes).await.is(201);
    }
    image
}

fn names(answer: &Reply, field: &str) -> Vec<String> {
    let document = answer.json();
    support::list(&document[field]).iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

/// Returns all names, following `Link`. Each page but the last must be full.
async fn pages(registry: &Registry, path: &str, field: &str, size: usize) -> Vec<String> {
    let mut page = registry.get(&format!("{path}?n={size}")).await.is(200);
    let mut all = names(&page, field);
    for _ in 0..100 {
        let found = names(&page, field).len();
        let Some(next) = page.next() else {
            assert!(found <= size, "{page}");
            return all;
        };
        assert_eq!(found, size, "{page}");
        page = reply(registry.ask_at(Method::GET, &next)).await.is(200);
        all.extend(names(&page, field));
    }
    panic!("{path}: the pages do not end: {all:?}");
}

#[tokio::test]
async fn a_repository_without_tags() {
    let registry = Registry::start().await;
    registry.get("/v2/conformance/no-such/tags/list").await.is(404).refuses(&["NAME_UNKNOWN"]);
}

#[tokio::test]
async fn tags_come_sorted_and_in_pages() {
    let registry = Registry::start().await;
    let (repository, path) = ("conformance/paged", "/v2/conformance/paged/tags/list");
    let sorted = ["0.9", "1.0", "1.0-rc1", "a", "b", "latest", "z_1"];
    push_tagged(&registry, repository, &["latest", "b", "1.0-rc1", "z_1", "a", "0.9", "1.0"]).await;
    let whole = registry.get(path).await.is(200);
    assert!(whole.header("Content-Type").starts_with("application/json"), "{whole}");
    assert_eq!(whole.json()["name"], repository);
    assert_eq!((names(&whole, "tags"), whole.next()), (sorted.map(str::to_owned).to_vec(), None));
    for size in 1..=8 {
        assert_eq!(pages(&registry, path, "tags", size).await, sorted, "pages of {size}");
    }
    for (query, expected, more) in [
        ("n=0", &sorted[..0], false),
        ("n=3", &sorted[..3], true),
        ("n=1000000", &sorted[..], false),
        ("last=1.0", &sorted[2..], false),
        ("last=c", &sorted[5..], false),
        ("last=zzz", &sorted[..0], false),
        ("n=2&last=a", &sorted[4..6], true),
        ("last=a&n=3", &sorted[4..], false),
    ] {
        let answer = registry.get(&format!("{path}?{query}")).await.is(200);
        assert_eq!(names(&answer, "tags"), expected, "{query}");
        assert_eq!(answer.next().is_some(), more, "{answer}");
    }
    for query in ["n=-1", "n=x", "n=99999999999999999999999"] {
        registry.get(&format!("{path}?{query}")).await.is(400);
    }
}

#[tokio::test]
async fn a_tag_moves() {
    let registry = Registry::start().await;
    let repository = "conformance/moving";
    let one = push_tagged(&registry, repository, &["latest", "one"]).await;
    let mut set = Set::new(Sha256, "another");
    let two = set.manifest(&Parts::image());
    push_blobs(&registry, repository, &set).await;
    let path = format!("/v2/{repository}/manifests/latest");
    registry.put(&path, &two.media_type, &two.bytes).await.is(201);
    registry.get(&path).await.is(200).holds(&two.bytes);
    registry.get(&format!("/v2/{repository}/manifests/{}", one.digest)).await.is(200).holds(&one.bytes);
    // Deleting a manifest deletes its tags.
    registry.delete(&format!("/v2/{repository}/manifests/{}", one.digest)).await.is(202);
    registry.get(&format!("/v2/{repository}/manifests/one")).await.is(404).refuses(&["MANIFEST_UNKNOWN"]);
    let tags = registry.get(&format!("/v2/{repository}/tags/list")).await.is(200);
    assert_eq!(names(&tags, "tags"), ["latest"]);
}

#[tokio::test]
async fn the_catalog_comes_in_pages() {
    let registry = Registry::start().await;
    let own = ["conformance/catalog/a", "conformance/catalog/b", "conformance/catalog/b/c", "conformance/catalog/d"];
    for repository in own {
        push_tagged(&registry, repository, &["one", "two"]).await;
    }
    let ours = |all: Vec<String>| -> Vec<String> {
        all.into_iter().filter(|name| name.starts_with("conformance/catalog/")).collect()
    };
    let whole = registry.get("/v2/_catalog").await.is(200);
    assert_eq!(ours(names(&whole, "repositories")), own);
    for size in [1, 2, 3, 50] {
        let all = pages(&registry, "/v2/_catalog", "repositories", size).await;
        assert!(all.is_sorted(), "{all:?}");
        assert_eq!(ours(all), own, "pages of {size}");
    }
    let rest = registry.get("/v2/_catalog?last=conformance/catalog/b").await.is(200);
    assert_eq!(ours(names(&rest, "repositories")), own[2..]);
}

#[tokio::test]
async fn a_name_of_one_part_is_in_the_library() {
    let Some(registry) = Registry::daemon("conformance::tags::a_name_of_one_part_is_in_the_library").await else {
        return;
    };
    let image = push_tagged(&registry, "short", &["latest"]).await;
    for repository in ["short", "library/short"] {
        registry.get(&format!("/v2/{repository}/manifests/latest")).await.is(200).holds(&image.bytes);
        let tags = registry.get(&format!("/v2/{repository}/tags/list")).await.is(200);
        assert_eq!(names(&tags, "tags"), ["latest"]);
    }
    // `ns` names the host of a mirrored registry, whose repositories are separate.
    registry.get("/v2/short/manifests/latest?ns=registry.example.com").await.is(404);
}
