//! A replica is killed after each of its requests to the storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use content::{Digest, Expected, Ingest, Ingester};
use object_store::memory::InMemory;
use registry::server::{BlobStorage, Lookup, ManifestStorage, Reference, Removal};

use super::engine::Fault;
use super::{at_once, image, keys, push, push_image, replica, repository, upload_id, with_fault};
use crate::Bucket;

const LARGE: &[u8] = b"a blob of several parts";

/// Uploads a blob in two requests, and pushes an image of it. Returns whether each was
/// acknowledged.
async fn work(bucket: &Bucket) -> (bool, bool) {
    let to = repository("team/model");
    let uploaded = async {
        let mut upload = bucket.ingest(&upload_id("upload-1"), Expected::Unknown).await?;
        upload.write(Bytes::from_static(&LARGE[..8])).await?;
        upload.pause().await?;
        let Some(mut upload) = bucket.resume(&upload_id("upload-1")).await? else { panic!("it was stored") };
        upload.write(Bytes::from_static(&LARGE[8..])).await?;
        bucket.finish(&to, upload, Expected::Digest(Digest::of(LARGE))).await
    };
    let uploaded = uploaded.await.is_ok();
    let digest = Digest::of(LARGE);
    let pushed = push_image(bucket, &to, &digest, image(&digest, LARGE.len()), "latest").await;
    (uploaded, pushed.unwrap_or(false))
}

/// Checks that a collection leaves only objects of the blob and the manifest, if they were pushed.
async fn check(after: usize, bucket: &Bucket, (uploaded, pushed): (bool, bool)) {
    let to = repository("team/model");
    let digest = Digest::of(LARGE);
    if uploaded {
        let there = bucket.blob(&to, &digest, Lookup::Read).await.expect("a blob");
        assert!(there.is_some(), "after {after} requests: an acknowledged blob is missing");
    }
    bucket.collect(&at_once()).await.expect("a collection");
    let tag = bucket.manifest(&to, &Reference::Tag("latest".to_owned())).await.expect("a tag");
    assert!(!pushed || tag.is_some(), "after {after} requests: an acknowledged tag is missing");
    let raw = image(&digest, LARGE.len());
    let has_manifest = bucket.read_manifest(&to, &Digest::of(&raw)).await.expect("a manifest").is_some();
    assert!(tag.is_none() || has_manifest, "after {after} requests: the tag names a missing manifest");
    let has_blob = bucket.blob(&to, &digest, Lookup::Read).await.expect("a blob").is_some();
    assert_eq!(has_blob, has_manifest, "after {after} requests");
    let left = keys(bucket).await;
    let data = left.iter().filter(|key| key.starts_with("data/")).count();
    assert_eq!(data, usize::from(has_manifest), "after {after} requests: {left:?}");
    let temporary = ["uploads/", "intents/", "trash/"];
    let rest = left.iter().find(|key| temporary.iter().any(|folder| key.starts_with(folder)));
    assert_eq!(rest, None, "after {after} requests");
}

#[tokio::test]
async fn a_kill_at_any_request_leaves_nothing_behind() {
    let mut after = 0;
    loop {
        let memory = Arc::new(InMemory::new());
        let left = Arc::new(AtomicUsize::new(after));
        let killed = with_fault(memory.clone(), Fault::KilledAfter(left.clone()));
        let done = work(&killed).await;
        let survived = left.load(Ordering::SeqCst) > 0;
        check(after, &replica(memory), done).await;
        if survived {
            break;
        }
        after += 1;
    }
    assert!(after > 20, "only {after} requests were made");
}

#[tokio::test]
async fn a_kill_of_a_collection_loses_nothing() {
    let mut after = 0;
    loop {
        let memory = Arc::new(InMemory::new());
        let bucket = replica(memory.clone());
        let to = repository("team/model");
        let kept = push(&bucket, &to, b"keep").await.expect("a push");
        assert!(push_image(&bucket, &to, &kept, image(&kept, 4), "latest").await.expect("a push"));
        push(&bucket, &to, b"drop").await.expect("a push");
        let left = Arc::new(AtomicUsize::new(after));
        let killed = with_fault(memory, Fault::KilledAfter(left.clone()));
        let ended = killed.collect(&at_once()).await.is_ok();
        bucket.collect(&at_once()).await.expect("a second collection");
        assert!(bucket.blob(&to, &kept, Lookup::Read).await.expect("a blob").is_some(), "after {after} requests");
        let dropped = Digest::of(b"drop");
        assert!(bucket.blob(&to, &dropped, Lookup::Read).await.expect("a blob").is_none(), "after {after} requests");
        let data = keys(&bucket).await.into_iter().filter(|key| key.starts_with("data/"));
        assert_eq!(data.count(), 1, "after {after} requests");
        // The blob can be pushed again.
        push(&bucket, &to, b"drop").await.expect("a push");
        assert!(bucket.blob(&to, &dropped, Lookup::Read).await.expect("a blob").is_some(), "after {after} requests");
        if ended {
            break;
        }
        after += 1;
    }
    assert!(after > 10, "only {after} requests were made");
}

#[tokio::test]
async fn a_removed_blob_that_a_manifest_needs_stays() {
    let bucket = super::bucket();
    let to = repository("team/model");
    let digest = push(&bucket, &to, b"keep").await.expect("a push");
    let raw = image(&digest, 4);
    assert!(push_image(&bucket, &to, &digest, raw.clone(), "latest").await.expect("a push"));
    let refused = bucket.remove_blob(&to, &digest).await.expect("a removal");
    assert_eq!(refused, Removal::Referenced(Digest::of(&raw)));
    assert!(bucket.blob(&to, &digest, Lookup::Read).await.expect("a blob").is_some());
    let manifest = Reference::Digest(Digest::of(&raw));
    assert_eq!(bucket.remove_manifest(&to, &manifest).await.expect("a removal"), Removal::Done);
    assert_eq!(bucket.remove_blob(&to, &digest).await.expect("a removal"), Removal::Done);
    assert_eq!(bucket.remove_blob(&to, &digest).await.expect("a removal"), Removal::NotThere);
    assert!(bucket.blob(&to, &digest, Lookup::Promise).await.expect("a blob").is_none());
}
