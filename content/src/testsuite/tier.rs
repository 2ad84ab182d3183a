//! The conformance suite of tiers.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::tier::{BlobTier, Pieces, TierOwner};
use crate::{Algorithm, Descriptor, Digest, Error, Hasher};

/// Size in bytes of the largest blob of the suite: several parts of an upload to object storage.
const LARGE: usize = 20 << 20;

/// Runs every check on one empty place. `open` opens it for a store.
///
/// # Panics
/// Panics if the tier breaks a rule.
pub async fn run<F, Fut>(open: F)
where
    F: Fn(TierOwner) -> Fut,
    Fut: Future<Output = Result<Arc<dyn BlobTier>, Error>>,
{
    let error = open(owner("one", true)).await.expect_err("the place has no blobs").to_string();
    assert!(error.contains("is empty"), "{error}");
    let tier = open(owner("one", false)).await.expect("an empty place opens");
    stores_blobs(&*tier).await;
    refuses_wrong_bytes(&*tier).await;
    keeps_nothing_of_a_broken_source(&*tier).await;
    lists_and_removes(&*tier).await;
    belongs_to_one_store(&*tier, &open).await;
}

fn owner(id: &str, has_blobs: bool) -> TierOwner {
    TierOwner { id: id.to_owned(), has_blobs }
}

/// Bytes that no repetition makes smaller.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..size).map(next).collect()
}

fn pieces(bytes: &[u8]) -> Pieces {
    let pieces: Vec<_> = bytes.chunks(1 << 20).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces).boxed()
}

fn described(bytes: &[u8]) -> Descriptor {
    Descriptor::blob(Digest::of(bytes), bytes.len() as u64)
}

async fn content(tier: &dyn BlobTier, blob: &Descriptor, from: u64) -> Vec<u8> {
    let pieces = tier.read(blob, from).await.expect("a blob is read");
    pieces
        .try_fold(Vec::new(), |mut all, piece| async move {
            all.extend_from_slice(&piece);
            Ok(all)
        })
        .await
        .expect("all pieces are read")
}

async fn stores_blobs(tier: &dyn BlobTier) {
    for bytes in [Vec::new(), b"small".to_vec(), noise(LARGE)] {
        let blob = described(&bytes);
        assert_eq!(tier.size(&blob.digest).await.expect("a size"), None);
        assert!(matches!(tier.read(&blob, 0).await, Err(Error::BlobNotFound(digest)) if digest == blob.digest));
        for attempt in ["first", "second"] {
            tier.put(&blob, pieces(&bytes)).await.unwrap_or_else(|e| panic!("the {attempt} put: {e}"));
        }
        assert_eq!(tier.size(&blob.digest).await.expect("a size"), Some(blob.size));
        for from in [0, blob.size / 3, blob.size] {
            assert!(content(tier, &blob, from).await == bytes[from as usize..], "{} bytes from {from}", blob.size);
        }
    }
    let mut long = Hasher::new(Algorithm::Sha512);
    long.update(b"other algorithm");
    let blob = Descriptor::blob(long.finish(), 15);
    tier.put(&blob, pieces(b"other algorithm")).await.expect("a put by sha512");
    assert_eq!(content(tier, &blob, 6).await, b"algorithm");
}

async fn refuses_wrong_bytes(tier: &dyn BlobTier) {
    for (size, wrong) in [(9, noise(9)), (LARGE, noise(LARGE))] {
        let blob = described(&vec![7; size]);
        let put = tier.put(&blob, pieces(&wrong)).await;
        assert!(matches!(put, Err(Error::WrongDigest { .. })), "{put:?}");
        let put = tier.put(&blob, pieces(&wrong[1..])).await;
        assert!(matches!(put, Err(Error::WrongSize { .. })), "{put:?}");
        let put = tier.put(&blob, pieces(&[&wrong[..], b"x"].concat())).await;
        assert!(matches!(put, Err(Error::WrongSize { .. })), "{put:?}");
        assert_eq!(tier.size(&blob.digest).await.expect("a size"), None, "wrong bytes are not visible");
    }
}

async fn keeps_nothing_of_a_broken_source(tier: &dyn BlobTier) {
    let bytes = [noise(LARGE), b"broken".to_vec()].concat();
    let blob = described(&bytes);
    let broken = pieces(&bytes[..LARGE]).chain(stream::iter([Err(Error::Other("the source broke".into()))]));
    let error = tier.put(&blob, broken.boxed()).await.expect_err("the source is broken").to_string();
    assert!(error.contains("the source broke"), "{error}");
    assert_eq!(tier.size(&blob.digest).await.expect("a size"), None, "half of a blob is not visible");
    tier.put(&blob, pieces(&bytes)).await.expect("a put after a broken one");
    assert!(content(tier, &blob, 0).await == bytes);
}

async fn lists_and_removes(tier: &dyn BlobTier) {
    let blob = described(b"to be removed");
    tier.put(&blob, pieces(b"to be removed")).await.expect("a put");
    let before: Vec<_> = tier.list().try_collect().await.expect("a list");
    assert!(before.contains(&(blob.digest, blob.size)), "{before:?}");
    for attempt in ["first", "second"] {
        tier.remove(&blob.digest).await.unwrap_or_else(|e| panic!("the {attempt} removal: {e}"));
    }
    assert_eq!(tier.size(&blob.digest).await.expect("a size"), None);
    let mut after: Vec<_> = tier.list().try_collect().await.expect("a list");
    after.push((blob.digest, blob.size));
    let sorted = |mut list: Vec<(Digest, u64)>| {
        list.sort_unstable();
        list
    };
    assert_eq!(sorted(before), sorted(after), "all other blobs stay");
}

async fn belongs_to_one_store<F, Fut>(tier: &dyn BlobTier, open: &F)
where
    F: Fn(TierOwner) -> Fut,
    Fut: Future<Output = Result<Arc<dyn BlobTier>, Error>>,
{
    let error = open(owner("another", false)).await.expect_err("another store has it").to_string();
    assert!(error.contains("another store"), "{error}");
    let again = open(owner("one", true)).await.expect("its own store opens it again");
    let own: Vec<_> = tier.list().try_collect().await.expect("a list");
    let same: Vec<_> = again.list().try_collect().await.expect("a list");
    assert_eq!(own, same);
}
