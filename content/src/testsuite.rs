//! The conformance suite: checks the rules that every content store follows.
//!
//! Call [`run`] with a function that makes an empty store. The panic message of a check names the
//! rule that the store breaks.

pub mod tier;

use std::future::Future;

use bytes::Bytes;

use crate::{Algorithm, Descriptor, Digest, Error, Expected, Hasher, Ingest, IngestId, Ingester, Provider};

/// Runs every check, each against a new store.
///
/// # Panics
/// Panics if the store breaks a rule.
pub async fn run<S, F, Fut>(make: F)
where
    S: Provider + Ingester,
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
    assert_eq!(store.stat(&digest).await.expect("stat"), None, "an empty store has no blobs");
    assert!(
        matches!(store.read(&Descriptor::blob(digest, 11), 0..1).await, Err(Error::BlobNotFound(d)) if d == digest)
    );
    let mut ingest = store.ingest(&id("a"), Expected::Unknown).await.expect("an ingest starts");
    ingest.write(Bytes::from_static(b"hello ")).await.expect("first write");
    assert_eq!(ingest.offset(), 6, "the offset counts what was written");
    ingest.write(Bytes::from_static(b"world")).await.expect("second write");
    assert_eq!(store.stat(&digest).await.expect("stat"), None, "nothing is visible before the commit");
    assert_eq!(ingest.commit().await.expect("commit"), (digest, 11));
    assert_eq!(store.stat(&digest).await.expect("stat"), Some(Descriptor::blob(digest, 11)));
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
    put(store, "ranges", RANGES).await;
    provides(store).await;
}

/// The content of the blob that [`provides`] reads.
pub const RANGES: &[u8] = b"0123456789";

/// Checks the rules of a provider that has the blob [`RANGES`].
///
/// # Panics
/// Panics if the provider breaks a rule.
pub async fn provides<P: Provider>(provider: &P) {
    let blob = Descriptor::blob(Digest::of(RANGES), RANGES.len() as u64);
    assert_eq!(provider.stat(&blob.digest).await.expect("stat"), Some(blob.clone()));
    for (range, expect) in [(0..10, "0123456789"), (3..5, "34"), (8..99, "89"), (10..12, ""), (50..60, ""), (4..4, "")]
    {
        let bytes = provider.read(&blob, range.clone()).await.expect("a range is read");
        assert_eq!(bytes, expect.as_bytes(), "range {range:?}");
    }
    let missing = Descriptor::blob(Digest::of(b"missing"), 7);
    assert_eq!(provider.stat(&missing.digest).await.expect("stat"), None, "it has no such blob");
    let refused = provider.read(&missing, 0..7).await;
    assert!(matches!(refused, Err(Error::BlobNotFound(digest)) if digest == missing.digest), "{refused:?}");
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
    assert_eq!(store.stat(&promised).await.expect("stat"), None, "wrong bytes are not visible as promised");
    assert_eq!(store.stat(&Digest::of(b"evil")).await.expect("stat"), None, "nor as what they are");
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
    assert_eq!(store.stat(&Digest::of(b"ab")).await.expect("stat"), None, "a short blob is not visible");
}

async fn resumes<S: Provider + Ingester>(store: &S) {
    let expected = Expected::Blob { digest: Digest::of(b"part one, part two"), size: 18 };
    let mut ingest = store.ingest(&id("resume"), expected).await.expect("start");
    ingest.write(Bytes::from_static(b"part one, ")).await.expect("write");
    drop(ingest.pause().await.expect("a pause"));
    let mut ingest = store.ingest(&id("resume"), expected).await.expect("resume");
    assert_eq!(ingest.offset(), 10, "a paused ingest goes on where it stopped");
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
    assert_eq!(store.read(&Descriptor::blob(first, 4), 0..4).await.expect("read"), &b"same"[..]);
}

async fn cancels<S: Ingester>(store: &S) {
    let mut ingest = store.ingest(&id("cancel"), Expected::Unknown).await.expect("start");
    ingest.write(Bytes::from_static(b"rubbish")).await.expect("write");
    ingest.cancel().await.expect("cancel");
    let again = store.ingest(&id("cancel"), Expected::Unknown).await.expect("restart");
    assert_eq!(again.offset(), 0, "a cancelled ingest leaves nothing");
}
