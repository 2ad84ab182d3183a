//! Tests of the bucket over storages in memory.

mod engine;
mod kills;
mod repositories;
mod schedules;
mod tiers;
mod uploads;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use content::{Digest, Expected, Ingest, IngestId, Ingester};
use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use registry::RepositoryName;
use registry::server::{BlobStorage, Lookup, ManifestStorage, NewManifest, NewTag, Repository, TagChange};

use engine::{Fault, Faulty};

use crate::objects::{Engine, Objects};
use crate::part_sizes::PartSizes;
use crate::{Bucket, CollectOptions};

/// A replica over a memory.
fn replica(memory: Arc<InMemory>) -> Bucket {
    with_fault(memory, Fault::None)
}

/// A replica over a memory that it reaches with faults.
fn with_fault(memory: Arc<InMemory>, fault: Fault) -> Bucket {
    over(Arc::new(Faulty { memory, fault }))
}

/// A replica over a memory, with parts of these sizes.
fn with_part_sizes(memory: Arc<InMemory>, sizes: PartSizes) -> Bucket {
    Bucket::over(Objects::new(Arc::new(Faulty { memory, fault: Fault::None }), None, ""), sizes)
}

/// A replica over a storage, with parts of a few bytes.
fn over(engine: Arc<dyn Engine>) -> Bucket {
    Bucket::over(Objects::new(engine, None, "some/prefix"), PartSizes::Tiny)
}

fn bucket() -> Bucket {
    replica(Arc::new(InMemory::new()))
}

fn repository(name: &str) -> Repository {
    Repository { name: RepositoryName::parse(name).expect("a name"), namespace: None, mirrored: false }
}

fn upload_id(text: &str) -> IngestId {
    IngestId::parse(text).expect("an id")
}

/// A collection in which everything is old enough to be removed.
fn at_once() -> CollectOptions {
    let now = SystemTime::now() + Duration::from_secs(1);
    CollectOptions { link_life: Duration::ZERO, data_life: Duration::ZERO, upload_life: Duration::ZERO, now }
}

/// Uploads a blob in one request.
async fn push(bucket: &Bucket, to: &Repository, bytes: &'static [u8]) -> Result<Digest, content::Error> {
    let id = upload_id(&format!("upload-{}", crate::keys::random()));
    let mut upload = bucket.ingest(&id, Expected::Unknown).await?;
    upload.write(Bytes::from_static(bytes)).await?;
    bucket.finish(to, upload, Expected::Digest(Digest::of(bytes))).await.map(|(digest, _)| digest)
}

/// The bytes of an image with one layer; the layer is also its config.
fn image(layer: &Digest, size: usize) -> Bytes {
    let own = format!("{{\"mediaType\":\"application/octet-stream\",\"digest\":\"{layer}\",\"size\":{size}}}");
    let kind = "application/vnd.oci.image.manifest.v1+json";
    format!("{{\"schemaVersion\":2,\"mediaType\":\"{kind}\",\"config\":{own},\"layers\":[{own}]}}").into()
}

/// Pushes a manifest as the server does: announces it, looks for its blob, stores it. Returns
/// `false` if the blob is not there.
async fn push_image(
    bucket: &Bucket,
    to: &Repository,
    layer: &Digest,
    raw: Bytes,
    tag: &str,
) -> Result<bool, content::Error> {
    let announced = bucket.announce(to, &[*layer]).await?;
    let done = match bucket.blob(to, layer, Lookup::Promise).await {
        Ok(Some(blob)) => {
            let document = manifests::Document::parse(&raw).expect("a manifest");
            let tags = vec![NewTag { name: tag.to_owned(), change: TagChange::Allowed }];
            let manifest = NewManifest { digest: Digest::of(&raw), raw, document, required: vec![blob], tags };
            bucket.put_manifest(to, manifest, &announced).await.map(|()| true)
        }
        Ok(None) => Ok(false),
        Err(error) => Err(error),
    };
    bucket.withdraw(announced).await?;
    done
}

/// The keys of all objects.
async fn keys(bucket: &Bucket) -> Vec<String> {
    bucket.objects.list("", None).map_ok(|entry| entry.key).try_collect().await.expect("a list")
}

#[tokio::test]
async fn conformance() {
    content::testsuite::run(|| async { bucket() }).await;
}
