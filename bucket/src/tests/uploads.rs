//! Uploads that move between replicas.

use std::sync::Arc;

use bytes::Bytes;
use content::{Algorithm, Descriptor, Digest, Error, Expected, Hasher, Ingest, Ingester, Provider};
use object_store::memory::InMemory;
use registry::server::{BlobStorage, Lookup};

use super::engine::Fault;
use super::{bucket, keys, replica, repository, upload_id};
use crate::part_sizes::PartSizes;

/// Sizes below, at and above those of parts, which have 5 bytes.
const SIZES: [usize; 9] = [0, 1, 4, 5, 6, 10, 11, 23, 50];

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|number| number as u8).collect()
}

#[tokio::test]
async fn each_request_may_reach_another_replica() {
    for size in SIZES {
        for chunk in [1, 3, 5, 7, 50] {
            for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
                let memory = Arc::new(InMemory::new());
                let id = upload_id("upload-x");
                let first = replica(memory.clone());
                let begun = first.ingest(&id, Expected::Unknown).await.expect("an upload");
                assert!(begun.pause().await.expect("a pause").is_none());
                let all = bytes(size);
                for chunk in all.chunks(chunk) {
                    let next = replica(memory.clone());
                    let mut upload = next.resume(&id).await.expect("a look").expect("the upload");
                    upload.write(Bytes::copy_from_slice(chunk)).await.expect("a write");
                    upload.pause().await.expect("a pause");
                }
                let last = replica(memory.clone());
                let upload = last.resume(&id).await.expect("a look").expect("the upload");
                assert_eq!(upload.offset(), size as u64);
                let mut hasher = Hasher::new(algorithm);
                hasher.update(&all);
                let digest = hasher.finish();
                let done = last.finish(&repository("a"), upload, Expected::Digest(digest)).await.expect("a commit");
                assert_eq!(done, (digest, size as u64), "{size} bytes in chunks of {chunk}");
                let read = first.read(&Descriptor::blob(digest, size as u64), 0..99).await.expect("its bytes");
                assert_eq!(read, all, "{size} bytes in chunks of {chunk}");
                assert!(first.resume(&id).await.expect("a look").is_none());
                let left = keys(&first).await;
                assert_eq!(left.iter().filter(|key| key.starts_with("uploads/")).count(), 0, "{left:?}");
            }
        }
    }
}

#[tokio::test]
async fn wrong_bytes_leave_nothing() {
    for size in SIZES {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let bucket = bucket();
            let id = upload_id("upload-x");
            let mut upload = bucket.ingest(&id, Expected::Unknown).await.expect("an upload");
            upload.write(bytes(size).into()).await.expect("a write");
            upload.pause().await.expect("a pause");
            let upload = bucket.resume(&id).await.expect("a look").expect("the upload");
            let mut other = Hasher::new(algorithm);
            other.update(b"other");
            let refused = bucket.finish(&repository("a"), upload, Expected::Digest(other.finish())).await;
            assert!(matches!(refused, Err(Error::WrongDigest { .. })), "{refused:?}");
            assert_eq!(keys(&bucket).await, [""; 0], "{size} bytes");
        }
    }
}

/// Two replicas continue an upload at the same time: one of them is told that it was too late.
#[tokio::test]
async fn the_second_of_two_writers_is_refused() {
    let memory = Arc::new(InMemory::new());
    let (first, second) = (replica(memory.clone()), replica(memory));
    let id = upload_id("upload-x");
    first.ingest(&id, Expected::Unknown).await.expect("an upload").pause().await.expect("a pause");
    let mut one = first.resume(&id).await.expect("a look").expect("the upload");
    let mut two = second.resume(&id).await.expect("a look").expect("the upload");
    one.write(Bytes::from_static(b"right bytes")).await.expect("a write");
    let late = two.write(Bytes::from_static(b"wrong bytes")).await;
    assert!(matches!(late, Err(Error::Busy(_))), "{late:?}");
    drop(two);
    one.pause().await.expect("a pause");
    let upload = second.resume(&id).await.expect("a look").expect("the upload");
    let (digest, _) = upload.commit().await.expect("a commit");
    assert_eq!(digest, Digest::of(b"right bytes"));
}

#[tokio::test]
async fn a_blob_that_exists_is_not_stored_again() {
    let bucket = bucket();
    let to = repository("a");
    for name in ["upload-1", "upload-2"] {
        let mut upload = bucket.ingest(&upload_id(name), Expected::Unknown).await.expect("an upload");
        upload.write(Bytes::from_static(b"the same bytes")).await.expect("a write");
        bucket.finish(&to, upload, Expected::Unknown).await.expect("a commit");
    }
    let data = keys(&bucket).await.into_iter().filter(|key| key.starts_with("data/"));
    assert_eq!(data.count(), 1);
}

/// The digest of another algorithm is checked as well if the blob exists already.
#[tokio::test]
async fn the_name_of_an_existing_blob_does_not_make_wrong_bytes_right() {
    let bucket = bucket();
    let mut hasher = Hasher::new(Algorithm::Sha512);
    hasher.update(b"right");
    let digest = hasher.finish();
    for (name, bytes, is_right) in [("upload-1", &b"right"[..], true), ("upload-2", b"wrong", false)] {
        let mut upload = bucket.ingest(&upload_id(name), Expected::Unknown).await.expect("an upload");
        upload.write(Bytes::from_static(bytes)).await.expect("a write");
        let done = bucket.finish(&repository(name), upload, Expected::Digest(digest)).await;
        assert_eq!(done.is_ok(), is_right, "{done:?}");
        let linked = bucket.blob(&repository(name), &digest, Lookup::Read).await.expect("a look");
        assert_eq!(linked.is_some(), is_right);
    }
}

/// Clients that send a few bytes at a time do not make a session of many objects.
#[tokio::test]
async fn small_chunks_are_joined() {
    let memory = Arc::new(InMemory::new());
    let bucket = super::with_part_sizes(memory, PartSizes::Equal);
    let id = upload_id("upload-x");
    bucket.ingest(&id, Expected::Unknown).await.expect("an upload").pause().await.expect("a pause");
    for number in 0..50 {
        let mut upload = bucket.resume(&id).await.expect("a look").expect("the upload");
        upload.write(Bytes::from(vec![number])).await.expect("a write");
        upload.pause().await.expect("a pause");
        assert!(keys(&bucket).await.len() <= 20);
    }
    let upload = bucket.resume(&id).await.expect("a look").expect("the upload");
    assert_eq!(upload.commit().await.expect("a commit"), (Digest::of(&bytes(50)), 50));
}

/// A storage may do what a request says although the response is lost.
#[tokio::test]
async fn a_lost_response_does_not_fail_a_commit() {
    for size in SIZES {
        let bucket = super::with_fault(Arc::new(InMemory::new()), Fault::LosesResponses);
        let mut upload = bucket.ingest(&upload_id("upload-x"), Expected::Unknown).await.expect("an upload");
        upload.write(bytes(size).into()).await.expect("a write");
        let (digest, _) = upload.commit().await.expect("a commit");
        let read = bucket.read(&Descriptor::blob(digest, size as u64), 0..99).await.expect("its bytes");
        assert_eq!(read, bytes(size));
    }
}
