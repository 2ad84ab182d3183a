//! The collection and the pushes of manifests in the orders of steps that `shuttle` chooses.

use std::sync::Arc;
use std::time::Duration;

use content::{Digest, Provider};
use futures_util::future::join_all;
use object_store::memory::InMemory;
use registry::server::{BlobStorage, Lookup, ManifestStorage, Reference};
use shuttle::future::{block_on, spawn};

use super::engine::Fault;
use super::{at_once, image, push, push_image, repository, with_fault};
use crate::{Bucket, CollectOptions};

const LAYER: &[u8] = b"abc";
const LOOKS: usize = 6;

/// Pushes the layer and an image of it, and sends the layer again as often as it is missing.
async fn pusher(bucket: Bucket, tag: &'static str) {
    let to = repository("team/model");
    let digest = Digest::of(LAYER);
    let raw = image(&digest, LAYER.len());
    while !push_image(&bucket, &to, &digest, raw.clone(), tag).await.expect("the storage works") {
        push(&bucket, &to, LAYER).await.expect("the storage works");
    }
    // The other pusher would send a lost blob again, so each looks on its own and several times.
    for _ in 0..LOOKS {
        check_blob(&bucket).await;
    }
}

/// The blob is in the repository, and can be read.
async fn check_blob(bucket: &Bucket) {
    let digest = Digest::of(LAYER);
    let found = bucket.blob(&repository("team/model"), &digest, Lookup::Read).await.expect("a look");
    let blob = found.expect("the blob of an acknowledged manifest");
    assert_eq!(bucket.read(&blob, 0..9).await.expect("its bytes"), LAYER);
}

/// Collects at once, except for intents and uploads of pushers, which are at work.
async fn collector(bucket: Bucket) {
    let options = CollectOptions { upload_life: Duration::from_hours(1), ..at_once() };
    bucket.collect(&options).await.expect("the storage works");
}

/// Every manifest that was acknowledged has its blob.
fn pushers_and_collectors(pushers: usize, collectors: usize) {
    block_on(async {
        let memory = Arc::new(InMemory::new());
        let replicas = || with_fault(memory.clone(), Fault::Yield);
        let first = replicas();
        let to = repository("team/model");
        // The blob exists already, and nothing refers to it.
        push(&first, &to, LAYER).await.expect("the storage works");
        let tags = &["one", "two"][..pushers];
        let pushers = tags.iter().map(|tag| spawn(pusher(replicas(), tag)));
        let collectors = (0..collectors).map(|_| spawn(collector(replicas())));
        for ended in join_all(pushers.chain(collectors)).await {
            ended.expect("no panic");
        }
        collector(replicas()).await;
        for tag in tags {
            let tag = Reference::Tag((*tag).to_owned());
            let named = first.manifest(&to, &tag).await.expect("a tag").expect("the tag");
            assert!(first.read_manifest(&to, &named).await.expect("a manifest").is_some(), "the manifest is missing");
        }
        check_blob(&first).await;
        let data = super::keys(&first).await.into_iter().filter(|key| key.starts_with("data/"));
        assert_eq!(data.count(), 1, "data without a pointer is left");
    });
}

#[test]
fn no_order_of_steps_loses_a_blob() {
    let orders = std::env::var("LODE_CAMPAIGN_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    for (pushers, collectors) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let run = move || pushers_and_collectors(pushers, collectors);
        shuttle::check_random(run, orders);
        shuttle::check_pct(run, orders, 4);
    }
}
