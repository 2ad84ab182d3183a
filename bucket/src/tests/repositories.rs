//! Lists, tags and referrers.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use content::Digest;
use registry::server::{BlobStorage, ManifestStorage, Page, Pulls, Reference, Removal, Repository, RepositoryUpkeep};

use super::{at_once, bucket, image, push, push_image, repository};
use crate::Bucket;

fn page(after: Option<&str>, most: usize) -> Page {
    Page { after: after.map(str::to_owned), most }
}

async fn tags(bucket: &Bucket, of: &Repository, page: &Page) -> (Vec<String>, bool) {
    let listed = bucket.tags(of, page).await.expect("a list").expect("the repository");
    (listed.entries, listed.has_more)
}

#[tokio::test]
async fn lists_come_in_pages() {
    let bucket = bucket();
    for name in ["b", "a/b", "a-b", "a/b/c", "A"] {
        push(&bucket, &repository(name), b"x").await.expect("a push");
    }
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let listed = bucket.repositories(&page(after.as_deref(), 2)).await.expect("a page");
        all.extend(listed.entries);
        if !listed.has_more {
            break;
        }
        after = all.last().cloned();
    }
    assert_eq!(all, ["A", "a/b", "a/b/c", "a-b", "b"]);
    let to = repository("a/b");
    let layer = Digest::of(b"x");
    for tag in ["v2", "v1", "v10"] {
        assert!(push_image(&bucket, &to, &layer, image(&layer, 1), tag).await.expect("a push"));
    }
    assert_eq!(tags(&bucket, &to, &page(None, 9)).await, (vec!["v1".into(), "v10".into(), "v2".into()], false));
    assert_eq!(tags(&bucket, &to, &page(Some("v1"), 1)).await, (vec!["v10".into()], true));
    let removed = bucket.remove_manifest(&to, &Reference::Tag("v10".to_owned())).await.expect("a removal");
    assert_eq!(removed, Removal::Done);
    assert_eq!(tags(&bucket, &to, &page(None, 9)).await, (vec!["v1".into(), "v2".into()], false));
    assert_eq!(bucket.tags(&repository("other"), &page(None, 9)).await.expect("a list"), None);
    // A tag can come back.
    assert!(push_image(&bucket, &to, &layer, image(&layer, 1), "v10").await.expect("a push"));
    let manifest = Digest::of(&image(&layer, 1));
    assert_eq!(bucket.manifest(&to, &Reference::Tag("v10".to_owned())).await.expect("a tag"), Some(manifest));
    let removed = bucket.remove_manifest(&to, &Reference::Digest(manifest)).await.expect("a removal");
    assert_eq!(removed, Removal::Done);
    assert_eq!(tags(&bucket, &to, &page(None, 9)).await, (vec![], false));
}

#[tokio::test]
async fn pulls_are_recorded_for_retention() {
    let bucket = bucket();
    let (to, layer) = (repository("a"), push(&bucket, &repository("a"), b"x").await.expect("a push"));
    assert!(push_image(&bucket, &to, &layer, image(&layer, 1), "v1").await.expect("a push"));
    let manifest = Digest::of(&image(&layer, 1));
    let asked = SystemTime::now();
    let pulls = bucket.pulls(&to, asked).await.expect("pulls");
    assert_eq!(pulls, Pulls { since: asked, last: HashMap::new() });
    bucket.record_pull(&to, &manifest).await.expect("a record");
    bucket.record_pull(&to, &manifest).await.expect("a record");
    let later = asked + Duration::from_hours(1);
    let pulls = bucket.pulls(&to, later).await.expect("pulls");
    assert!(pulls.since >= asked && pulls.since < later, "{pulls:?}");
    assert!(pulls.of(&manifest) >= pulls.since && pulls.of(&manifest) <= later, "{pulls:?}");
    assert_eq!(pulls.of(&layer), pulls.since);
    bucket.remove_manifest(&to, &Reference::Digest(manifest)).await.expect("a removal");
    assert!(bucket.pulls(&to, later).await.expect("pulls").last.is_empty());
    bucket.collect(&at_once()).await.expect("a collection");
    assert_eq!(bucket.pulls(&to, later).await.expect("pulls").since, pulls.since);
}

/// A client uses a prefix of a bucket; other prefixes are not its own.
#[tokio::test]
async fn repositories_of_other_registries_are_empty() {
    let bucket = bucket();
    let own = repository("a");
    let digest = push(&bucket, &own, b"x").await.expect("a push");
    let other = Repository { namespace: Some("docker.io".to_owned()), ..own.clone() };
    assert_eq!(bucket.blob(&other, &digest, registry::server::Lookup::Read).await.expect("a look"), None);
    assert!(!bucket.mount(Some(&other), &own, &digest).await.expect("a mount"));
    assert!(bucket.mount(Some(&own), &repository("b"), &digest).await.expect("a mount"));
    assert!(bucket.mount(None, &repository("c"), &digest).await.expect("a mount"));
    assert!(!bucket.mount(None, &repository("c"), &Digest::of(b"y")).await.expect("a mount"));
}
