//! The conformance suite: checks the rules that every content store follows.
//!
//! Call [`run`] with a function that makes an empty store. The panic message of a check names the
//! rule that the store breaks.

use std::future::Future;

use bytes::Bytes;

use crate::{Algorithm, Digest, Error, Expected, Hasher, Ingest, IngestId, Ingester, Memory, Provider, Tagger, copy};

/// Runs every check, each against a new store.
///
/// # Panics
/// Panics if the store breaks a rule.
pub async fn run<S, F, Fut>(make: F)
where
    S: Provider + Ingester + Tagger,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    commits_under_the_digest(&make().await).await;
    reads_ranges(&make().await).await;
    refuses_wrong_bytes(&make().await).await;
    refuses_wrong_sizes(&make().await).await;
    resumes(&make().await).await;
    has_one_writer_per_ingest(&make().await).await;
    commits_twice(&make().await).await;
    cancels(&make().await).await;
    tags(&make().await).await;
    copies(&make().await).await;
}

fn id(text: &str) -> IngestId {
    IngestId::parse(text).expect("the suite's ids are valid")
}

async fn put<S: Ingester>(store: &S, name: &str, bytes: &'static [u8]) -> Digest {
    let mut ingest = store.ingest(&id(name), Expected::Unknown).await.expect("an ingest starts");
    ingest.write(Bytes::from_static(bytes)).await.expect("a write goes through");
    ingest.commit().await.expect("a commit goes through").0
}

async fn commits_under_the_digest<S: Provider + Ingester>(store: &S) {
    let digest = Digest::of(b"hello world");
    assert_eq!(store.size(&digest).await.expect("size"), None, "an empty store has no blobs");
    assert!(matches!(store.read(&digest, 0..1).await, Err(Error::BlobNotFound(d)) if d == digest));
    let mut ingest = store.ingest(&id("a"), Expected::Unknown).await.expect("an ingest starts");
    ingest.write(Bytes::from_static(b"hello ")).await.expect("first write");
    assert_eq!(ingest.offset(), 6, "the offset counts what was written");
    ingest.write(Bytes::from_static(b"world")).await.expect("second write");
    assert_eq!(store.size(&digest).await.expect("size"), None, "nothing is visible before the commit");
    assert_eq!(ingest.commit().await.expect("commit"), (digest, 11));
    assert_eq!(store.size(&digest).await.expect("size"), Some(11));
    let empty = store.ingest(&id("a"), Expected::Unknown).await.expect("the id is free again");
    assert_eq!(empty.offset(), 0, "a committed ingest leaves nothing to resume");
    assert_eq!(empty.commit().await.expect("an empty blob is a blob"), (Digest::of(b""), 0));
    let mut long = Hasher::new(Algorithm::Sha512);
    long.update(b"hello world");
    let long = long.finish();
    let mut ingest = store.ingest(&id("b"), Expected::Digest(long)).await.expect("sha512 ingest");
    ingest.write(Bytes::from_static(b"hello world")).await.expect("write");
    assert_eq!(ingest.commit().await.expect("commit by sha512").0, long);
}

async fn reads_ranges<S: Provider + Ingester>(store: &S) {
    let digest = put(store, "ranges", b"0123456789").await;
    for (range, expect) in [(0..10, "0123456789"), (3..5, "34"), (8..99, "89"), (10..12, ""), (50..60, ""), (4..4, "")]
    {
        let bytes = store.read(&digest, range.clone()).await.expect("a range is read");
        assert_eq!(bytes, expect.as_bytes(), "range {range:?}");
    }
}

async fn refuses_wrong_bytes<S: Provider + Ingester>(store: &S) {
    let promised = Digest::of(b"good");
    let mut ingest = store.ingest(&id("lie"), Expected::Digest(promised)).await.expect("start");
    ingest.write(Bytes::from_static(b"evil")).await.expect("write");
    match ingest.commit().await {
        Err(Error::WrongDigest { expected, actual }) => {
            assert_eq!((expected, actual), (promised, Digest::of(b"evil")));
        }
        other => panic!("wrong bytes were not refused: {other:?}"),
    }
    assert_eq!(store.size(&promised).await.expect("size"), None, "wrong bytes are not visible as promised");
    assert_eq!(store.size(&Digest::of(b"evil")).await.expect("size"), None, "nor as what they are");
    let again = store.ingest(&id("lie"), Expected::Digest(promised)).await.expect("restart");
    assert_eq!(again.offset(), 0, "wrong bytes are not resumed from");
}

async fn refuses_wrong_sizes<S: Provider + Ingester>(store: &S) {
    let mut ingest = store.ingest(&id("long"), Expected::Size(3)).await.expect("start");
    let refused = ingest.write(Bytes::from_static(b"four")).await;
    assert!(matches!(refused, Err(Error::WrongSize { expected: 3, actual: 4 })), "{refused:?}");
    drop(ingest);
    let mut ingest = store.ingest(&id("short"), Expected::Size(3)).await.expect("start");
    ingest.write(Bytes::from_static(b"ab")).await.expect("write");
    let refused = ingest.commit().await;
    assert!(matches!(refused, Err(Error::WrongSize { expected: 3, actual: 2 })), "{refused:?}");
    assert_eq!(store.size(&Digest::of(b"ab")).await.expect("size"), None, "a short blob is not visible");
}

async fn resumes<S: Provider + Ingester>(store: &S) {
    let expected = Expected::Blob { digest: Digest::of(b"part one, part two"), size: 18 };
    let mut ingest = store.ingest(&id("resume"), expected).await.expect("start");
    ingest.write(Bytes::from_static(b"part one, ")).await.expect("write");
    drop(ingest);
    let mut ingest = store.ingest(&id("resume"), expected).await.expect("resume");
    assert_eq!(ingest.offset(), 10, "a dropped ingest goes on where it stopped");
    ingest.write(Bytes::from_static(b"part two")).await.expect("write");
    assert_eq!(ingest.commit().await.expect("commit").1, 18);
}

async fn has_one_writer_per_ingest<S: Ingester>(store: &S) {
    let first = store.ingest(&id("one"), Expected::Unknown).await.expect("start");
    let second = store.ingest(&id("one"), Expected::Unknown).await;
    assert!(matches!(second, Err(Error::Busy(_))), "a second writer was let in");
    let _other = store.ingest(&id("two"), Expected::Unknown).await.expect("another id is free");
    drop(first);
    assert!(store.ingest(&id("one"), Expected::Unknown).await.is_ok(), "a dropped ingest frees its id");
}

async fn commits_twice<S: Provider + Ingester>(store: &S) {
    let first = put(store, "twice-1", b"same").await;
    let second = put(store, "twice-2", b"same").await;
    assert_eq!(first, second);
    assert_eq!(store.read(&first, 0..4).await.expect("read"), &b"same"[..]);
}

async fn cancels<S: Ingester>(store: &S) {
    let mut ingest = store.ingest(&id("cancel"), Expected::Unknown).await.expect("start");
    ingest.write(Bytes::from_static(b"rubbish")).await.expect("write");
    ingest.cancel().await.expect("cancel");
    let again = store.ingest(&id("cancel"), Expected::Unknown).await.expect("restart");
    assert_eq!(again.offset(), 0, "a cancelled ingest leaves nothing");
}

async fn tags<S: Provider + Ingester + Tagger>(store: &S) {
    const TAG: &str = "example.com/team/model:latest";
    let (one, two) = (put(store, "t1", b"one").await, put(store, "t2", b"two").await);
    assert_eq!(store.resolve(TAG).await.expect("resolve"), None);
    store.tag(TAG, &one).await.expect("tag");
    assert_eq!(store.resolve(TAG).await.expect("resolve"), Some(one));
    store.tag(TAG, &two).await.expect("retag");
    assert_eq!(store.resolve(TAG).await.expect("resolve"), Some(two));
    let missing = store.tag(TAG, &Digest::of(b"missing")).await;
    assert!(matches!(missing, Err(Error::BlobNotFound(_))), "a tag to nothing was taken: {missing:?}");
    assert_eq!(store.resolve(TAG).await.expect("resolve"), Some(two), "a refused tag changes nothing");
    assert!(store.untag(TAG).await.expect("untag"));
    assert!(!store.untag(TAG).await.expect("untag"), "a second untag finds nothing");
    assert_eq!(store.resolve(TAG).await.expect("resolve"), None);
    assert_eq!(store.size(&two).await.expect("size"), Some(3), "untag leaves the blob");
}

async fn copies<S: Provider + Ingester>(store: &S) {
    let memory = Memory::new();
    let digest = put(store, "copy", b"to be copied").await;
    assert_eq!(copy(store, &memory, &digest).await.expect("copy out"), 12);
    let other = put(&memory, "back", b"and back").await;
    assert_eq!(copy(&memory, store, &other).await.expect("copy in"), 8);
    assert_eq!(store.read(&other, 0..8).await.expect("read"), &b"and back"[..]);
    assert!(matches!(copy(&memory, store, &Digest::of(b"?")).await, Err(Error::BlobNotFound(_))));
}
