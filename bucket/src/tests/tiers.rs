//! Tests of the tier in a bucket.

use std::sync::Arc;

use content::tier::TierOwner;
use content::{BlobTier, Descriptor, Digest, Error};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::memory::InMemory;
use tokio::sync::Notify;

use super::engine::{Fault, Faulty};
use crate::BucketTier;
use crate::objects::Objects;
use crate::part_sizes::PartSizes;

async fn open(memory: &Arc<InMemory>, store: &TierOwner, sizes: PartSizes) -> Result<BucketTier, Error> {
    let engine = Arc::new(Faulty { memory: memory.clone(), fault: Fault::None });
    BucketTier::over(Objects::new(engine, None, "some/prefix"), sizes, "memory://".to_owned(), store).await
}

#[tokio::test]
async fn conformance() {
    for sizes in [PartSizes::Growing, PartSizes::Equal] {
        let memory = Arc::new(InMemory::new());
        let tier = |store: TierOwner| {
            let memory = memory.clone();
            async move { Ok(Arc::new(open(&memory, &store, sizes).await?) as Arc<dyn BlobTier>) }
        };
        content::testsuite::tier::run(tier).await;
        let left: Vec<_> =
            Objects::new(memory, None, "some/prefix").list("tier/uploads", None).try_collect().await.expect("a list");
        assert!(left.is_empty(), "uploads leave nothing: {left:?}");
    }
}

#[tokio::test]
async fn an_upload_of_a_process_that_died_is_discarded() {
    let memory = Arc::new(InMemory::new());
    let one = TierOwner { id: "one".to_owned(), has_blobs: false };
    let tier = open(&memory, &one, PartSizes::Tiny).await.expect("a tier");
    let blob = Descriptor::blob(Digest::of(b"many small parts"), 16);
    // The put is dropped while it waits for more bytes, as if the process were killed there.
    let waits = Arc::new(Notify::new());
    let told = waits.clone();
    let end = stream::once(async move {
        told.notify_one();
        std::future::pending().await
    });
    let pieces = stream::iter([Ok("many small".into())]).chain(end).boxed();
    tokio::select! {
        put = tier.put(&blob, pieces) => panic!("half of a blob was stored: {put:?}"),
        () = waits.notified() => {}
    }
    let uploads = async || -> usize {
        let objects = Objects::new(memory.clone(), None, "some/prefix");
        objects.list("tier/uploads", None).try_collect::<Vec<_>>().await.expect("a list").len()
    };
    assert_eq!(uploads().await, 1);
    let again = open(&memory, &one, PartSizes::Tiny).await.expect("the tier again");
    assert_eq!(uploads().await, 0);
    assert_eq!(again.size(&blob.digest).await.expect("a size"), None);
}
