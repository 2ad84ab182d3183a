//! Tests of moves, copies back and collections, over a tier in a folder.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use content::tier::Pieces;
use content::{BlobTier, Descriptor, Digest, Expected, IngestId, Unwatched};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use library::Library;
use store::{FolderTier, Options, Store, Verified};
use tempfile::TempDir;

use crate::{MovePlan, MoveRequest, Room, Tier, TierOptions, TierPolicy, plan_move};

/// Size in bytes of a layer.
const LAYER: usize = 100 << 10;

/// A store with a tier, each in a folder.
struct TieredStore {
    store: Store,
    library: Library,
    tier: Tier,
    folders: [TempDir; 2],
    /// Number of calls after which the tier fails.
    left: Arc<AtomicUsize>,
}

/// A tier in a folder that fails after a number of calls.
#[derive(Debug)]
struct FailingTier {
    tier: FolderTier,
    left: Arc<AtomicUsize>,
}

/// Counts a call; fails if none is left.
fn count(left: &AtomicUsize) -> Result<(), content::Error> {
    let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    before.map(drop).map_err(|_| content::Error::Other("the tier is down".into()))
}

#[async_trait]
impl BlobTier for FailingTier {
    async fn put(&self, blob: &Descriptor, bytes: Pieces) -> Result<(), content::Error> {
        count(&self.left)?;
        self.tier.put(blob, bytes).await?;
        // The response may be lost.
        count(&self.left)
    }

    async fn size(&self, digest: &Digest) -> Result<Option<u64>, content::Error> {
        count(&self.left)?;
        self.tier.size(digest).await
    }

    async fn read(&self, blob: &Descriptor, from: u64) -> Result<Pieces, content::Error> {
        count(&self.left)?;
        self.tier.read(blob, from).await
    }

    async fn remove(&self, digest: &Digest) -> Result<(), content::Error> {
        count(&self.left)?;
        self.tier.remove(digest).await?;
        count(&self.left)
    }

    fn list(&self) -> BoxStream<'static, Result<(Digest, u64), content::Error>> {
        match count(&self.left) {
            Ok(()) => self.tier.list(),
            Err(error) => futures_util::stream::iter([Err(error)]).boxed(),
        }
    }
}

fn open(home: &Path, tier: &Path, policy: TierPolicy, left: &Arc<AtomicUsize>) -> (Store, Library, Tier) {
    let store = Store::open(home, Options::default()).expect("a store");
    let library = Library::new(store.clone());
    let (folder, calls) = (tier.to_owned(), left.clone());
    let options = TierOptions {
        location: tier.display().to_string(),
        policy,
        new_id: "store-1".to_owned(),
        open: Box::new(move |owner| {
            let (folder, left) = (folder.clone(), calls.clone());
            Box::pin(async move {
                count(&left)?;
                Ok(Arc::new(FailingTier { tier: FolderTier::open(&folder, &owner)?, left }) as Arc<dyn BlobTier>)
            })
        }),
        loaded: Box::new(HashSet::new),
    };
    let tier = Tier::attach(&store, library.clone(), options).expect("a tier");
    (store, library, tier)
}

impl TieredStore {
    fn new() -> Self {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let (store, library, tier) = open(folders[0].path(), folders[1].path(), TierPolicy::default(), &left);
        Self { store, library, tier, folders, left }
    }

    /// Closes and opens the store, as a new process does.
    fn reopened(self, policy: TierPolicy) -> Self {
        let Self { store, library, tier, folders, left } = self;
        drop((store, library, tier));
        let (store, library, tier) = open(folders[0].path(), folders[1].path(), policy, &left);
        Self { store, library, tier, folders, left }
    }

    fn put(&self, bytes: &[u8]) -> Descriptor {
        let mut ingest = self
            .store
            .blobs()
            .start_ingest(&IngestId::parse("test").expect("an id"), Expected::Unknown)
            .expect("start");
        ingest.append(bytes).expect("a write");
        let (digest, size) = ingest.commit().expect("a commit");
        Descriptor::blob(digest, size)
    }

    /// Adds a model with layers of these seeds, last used so many days ago.
    fn model(&self, name: &str, layers: &[u8], days: u64) -> Digest {
        let config = self.put(b"{}");
        let text = |blob: &Descriptor, kind: &str| {
            format!("{{\"mediaType\":\"{kind}\",\"digest\":\"{}\",\"size\":{}}}", blob.digest, blob.size)
        };
        let layers: Vec<String> =
            layers.iter().map(|seed| text(&self.put(&layer(*seed)), "application/vnd.ollama.image.tensor")).collect();
        let manifest = format!(
            "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{},\"layers\":[{}]}}",
            text(&config, "application/vnd.docker.container.image.v1+json"),
            layers.join(",")
        );
        let manifest = self.put(manifest.as_bytes()).digest;
        self.store.names().set(&format!("localhost/library/{name}:latest"), &manifest).expect("a tag");
        let path = self.folders[0].path().join(format!("tags/localhost/library/{name}/:latest"));
        let used = SystemTime::now() - Duration::from_hours(24 * days);
        std::fs::File::open(path).and_then(|file| file.set_modified(used)).expect("an older tag");
        manifest
    }

    fn is_on_disk(&self, seed: u8) -> bool {
        self.store.blobs().size_on_disk(&digest(seed)).expect("a size").is_some()
    }

    /// The layers that are on the disk.
    fn on_disk(&self, seeds: std::ops::Range<u8>) -> Vec<u8> {
        seeds.filter(|seed| self.is_on_disk(*seed)).collect()
    }

    fn tier_file(&self, seed: u8) -> std::path::PathBuf {
        let hex = digest(seed).hex();
        self.folders[1].path().join(format!("blobs/sha256/{}/{hex}", &hex[..2]))
    }

    fn in_tier(&self, seed: u8) -> bool {
        self.tier_file(seed).is_file()
    }

    fn plan(&self, request: &MoveRequest) -> MovePlan {
        plan_move(&self.library, request).expect("a plan")
    }

    async fn move_all(&self) -> crate::Moved {
        let moved = self.tier.execute(&self.plan(&after(0)), &Unwatched).await.expect("a move");
        assert_eq!(moved.failed, Vec::<String>::new());
        moved
    }

    /// Reads a whole layer as other code does.
    async fn read(&self, seed: u8) -> Result<Vec<u8>, store::Error> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || store.blobs().read(&digest(seed), 1 << 20)).await.expect("no panic")
    }
}

/// A safetensors file with one tensor of bytes.
fn layer(seed: u8) -> Vec<u8> {
    let header = format!("{{\"t\":{{\"dtype\":\"U8\",\"shape\":[{LAYER}],\"data_offsets\":[0,{LAYER}]}}}}");
    let content = (0..LAYER).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed));
    (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(content).collect()
}

fn digest(seed: u8) -> Digest {
    Digest::of(&layer(seed))
}

fn after(days: u64) -> MoveRequest {
    let after = Some(Duration::from_hours(24 * days));
    MoveRequest { after, ..MoveRequest::at(SystemTime::now()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_move_and_come_back_when_they_are_read() {
    let place = TieredStore::new();
    place.model("m", &[1, 2], 3);
    let moved = place.move_all().await;
    assert_eq!((moved.blobs, moved.sent), (2, 2 * layer(1).len() as u64));
    assert_eq!(place.on_disk(1..3), [0_u8; 0]);
    // The header is known without the tier.
    place.left.store(0, Ordering::Relaxed);
    let place = place.reopened(TierPolicy::default());
    let blob = place.store.blobs().open(&digest(1)).expect("it exists");
    assert_eq!(blob.size(), layer(1).len() as u64);
    let header = 8 + u64::from_le_bytes(layer(1)[..8].try_into().expect("eight bytes"));
    assert_eq!(blob.read(0..header).expect("the header"), layer(1)[..header as usize]);
    drop(blob);
    let error = place.read(1).await.expect_err("the tier is down").to_string();
    assert!(error.contains("the tier is down") && error.contains(&digest(1).to_string()), "{error}");
    // Many readers cause one copy.
    place.left.store(usize::MAX, Ordering::Relaxed);
    let reads = (0..8).map(|_| place.read(1));
    for read in futures_util::future::join_all(reads).await {
        assert!(read.expect("it comes back") == layer(1));
    }
    assert_eq!(place.on_disk(1..3), [1]);
    assert!(place.store.blobs().verify(&digest(1), None, &mut |_| true).expect("a check") == Verified::Good);
    assert!(place.in_tier(1), "the tier keeps its copy");
    let again = place.move_all().await;
    assert_eq!((again.blobs, again.sent), (1, 0), "the tier has it already");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_unused_models_move() {
    let place = TieredStore::new();
    place.model("old", &[1, 2], 30);
    place.model("older", &[3], 40);
    place.model("young", &[2, 4], 1);
    place.model("pinned", &[5], 50);
    place.store.names().pin("localhost/library/pinned:latest").expect("a pin");
    let layers = |plan: MovePlan| {
        let seed = |blob: &Descriptor| (1..6).find(|seed| digest(*seed) == blob.digest);
        plan.blobs.iter().map(|blob| seed(blob).expect("a layer")).collect::<Vec<_>>()
    };
    assert_eq!(layers(place.plan(&after(7))), [3, 1], "without what the young model shares");
    assert_eq!(layers(place.plan(&after(35))), [3]);
    let free = |at_least| MoveRequest { after: None, at_least, ..after(0) };
    assert_eq!(layers(place.plan(&free(1))), [3]);
    assert_eq!(layers(place.plan(&free(layer(1).len() as u64 + 1))), [3, 1]);
    let young = place.plan(&free(u64::MAX));
    assert_eq!(layers(young.clone())[..2], [3, 1]);
    assert_eq!(young.blobs.len(), 4, "all but the pinned model's");
    let older = MoveRequest { kept: [digest(3)].into(), ..after(7) };
    assert_eq!(layers(place.plan(&older)), [1], "a blob that the request keeps");
    let tag = place.store.names().get("localhost/library/old:latest").expect("a read").expect("a tag");
    let loaded = MoveRequest { loaded: [tag.digest].into(), ..after(7) };
    assert_eq!(layers(place.plan(&loaded)), [3], "without the loaded model");
    let named = |name: &str| {
        let tag = place.store.names().get(&format!("localhost/library/{name}:latest")).expect("a read");
        MoveRequest { after: None, models: [tag.expect("a tag").digest].into(), ..after(0) }
    };
    assert_eq!(layers(place.plan(&named("young"))), [4], "the other layer is the old model's, too");
    assert_eq!(layers(place.plan(&named("pinned"))), [] as [u8; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_keeps_to_its_budget() {
    let place = TieredStore::new();
    for (name, seed, days) in [("a", 1, 30), ("b", 2, 20), ("c", 3, 10)] {
        place.model(name, &[seed], days);
    }
    let budget = 2 * LAYER as u64 + 20_000;
    let place = place.reopened(TierPolicy { after: None, disk: Some(budget) });
    let over_budget = place.tier.over_budget().await.expect("a look");
    place.tier.maintain(SystemTime::now(), over_budget, &Unwatched).await.expect("a move");
    assert_eq!(place.on_disk(1..4), [2, 3]);
    // Copying one back makes another one leave first.
    let held = place.library.hold(vec![digest(1)]);
    let blob = Descriptor::blob(digest(1), layer(1).len() as u64);
    place.tier.recall_all(vec![blob], Room::Make, &Unwatched).await.expect("a copy");
    drop(held);
    assert_eq!(place.on_disk(1..4), [1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_reaches_the_tier() {
    let place = TieredStore::new();
    place.model("m", &[1, 2], 3);
    place.model("n", &[2], 3);
    place.move_all().await;
    place.store.names().remove("localhost/library/m:latest").expect("a removal");
    let collectable = place.library.collectable();
    assert!(collectable.blobs.iter().any(|(blob, _)| *blob == digest(1)), "{collectable:?}");
    place.library.gc();
    assert_eq!(place.store.blobs().size(&digest(1)).expect("a size"), None);
    assert!(place.in_tier(1), "the tier is not asked by a collection");
    // The same blob is added again before the tier has removed it.
    place.model("again", &[1], 3);
    let moved = place.tier.execute(&MovePlan::default(), &Unwatched).await.expect("removals");
    assert_eq!(moved.blobs, 0);
    assert!(!place.in_tier(1) && place.in_tier(2) && place.is_on_disk(1));
    place.move_all().await;
    assert!(place.in_tier(1) && !place.is_on_disk(1));
    assert!(place.read(1).await.expect("it comes back") == layer(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_in_use_stay() {
    let place = TieredStore::new();
    place.model("m", &[1, 2], 3);
    let held = place.library.hold(vec![digest(1)]);
    let moved = place.tier.execute(&place.plan(&after(0)), &Unwatched).await.expect("a move");
    assert_eq!((moved.blobs, moved.in_use), (1, 1));
    drop(held);
    assert_eq!(place.on_disk(1..3), [1]);
    // An open reader keeps a blob that it may still copy back.
    let open = place.store.blobs().open(&digest(2)).expect("it exists");
    place.store.names().remove("localhost/library/m:latest").expect("a removal");
    place.library.gc();
    let read = tokio::task::spawn_blocking(move || open.read(0..u64::MAX)).await.expect("no panic");
    assert!(read.expect("it is read") == layer(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_do_not_come_back() {
    let place = TieredStore::new();
    place.model("m", &[1, 2], 3);
    place.move_all().await;
    let file = place.tier_file(1);
    let mut wrong = layer(1);
    wrong[LAYER / 2] ^= 1;
    std::fs::remove_file(&file).and_then(|()| std::fs::write(&file, &wrong)).expect("damage");
    let error = place.read(1).await.expect_err("the digest is wrong").to_string();
    assert!(error.contains("wrong digest") && error.contains("lode repair"), "{error}");
    assert!(!place.is_on_disk(1), "wrong bytes are not visible");
    assert_eq!(place.store.blobs().size(&digest(1)).expect("a size"), None, "the blob counts as missing");
    assert_eq!(place.tier.reconcile().await.expect("a comparison"), crate::Reconciled::default());
    // The bytes are right after all: a repair reads them once more.
    std::fs::write(&file, layer(1)).expect("written");
    place.store.blobs().retry_damaged_in_tier(&digest(1)).expect("a retry");
    assert!(place.read(1).await.expect("it comes back") == layer(1));
    // A blob that the tier has lost: first found by a reader, then by the comparison.
    place.move_all().await;
    std::fs::remove_file(&file).expect("loss");
    let store = place.store.clone();
    let verified = tokio::task::spawn_blocking(move || store.blobs().verify(&digest(1), None, &mut |_| true));
    assert_eq!(verified.await.expect("no panic").expect("a check"), Verified::Missing);
    let error = place.read(1).await.expect_err("it is lost").to_string();
    assert!(error.contains("does not have it; `lode repair`"), "{error}");
    assert_eq!(place.store.blobs().size(&digest(1)).expect("a size"), None);
    std::fs::write(&file, layer(1)).expect("it is there again");
    assert_eq!(place.tier.reconcile().await.expect("a comparison").found, 1);
    std::fs::remove_file(&file).expect("loss");
    let report = place.tier.reconcile().await.expect("a comparison");
    assert_eq!(report.lost, [digest(1)]);
    assert_eq!(place.store.blobs().size(&digest(1)).expect("a size"), None);
}

/// The tier loses or cuts a blob that the disk has, too: the next move puts it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_asks_the_tier_before_the_file_goes() {
    let place = TieredStore::new();
    place.model("m", &[1, 2], 3);
    place.move_all().await;
    place.read(1).await.expect("it comes back");
    place.read(2).await.expect("it comes back");
    std::fs::remove_file(place.tier_file(1)).expect("loss");
    std::fs::remove_file(place.tier_file(2)).and_then(|()| std::fs::write(place.tier_file(2), b"cut")).expect("damage");
    let moved = place.move_all().await;
    assert_eq!((moved.blobs, moved.sent), (2, 2 * layer(1).len() as u64), "both are sent again");
    assert!(place.read(1).await.expect("it comes back") == layer(1));
    assert!(place.read(2).await.expect("it comes back") == layer(2));
}

/// A copy back counts as a use, and blobs of a loaded model stay.
#[tokio::test(flavor = "multi_thread")]
async fn blobs_that_came_back_stay_for_a_while() {
    let place = TieredStore::new();
    place.model("m", &[1, 2], 30);
    place.move_all().await;
    place.read(1).await.expect("it comes back");
    assert!(place.plan(&after(7)).blobs.is_empty());
    let on_disk = place.store.hold_on_disk(vec![digest(1)]);
    let moved = place.tier.execute(&place.plan(&after(0)), &Unwatched).await.expect("a move");
    assert_eq!((moved.blobs, moved.in_use), (0, 1));
    drop(on_disk);
    assert_eq!(place.move_all().await.blobs, 1);
}

/// The tier fails at each of its calls in turn. Every blob can be read afterwards, and a move
/// without failures succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_fails_at_any_call_loses_nothing() {
    for calls in 0..18 {
        let place = TieredStore::new();
        place.model("m", &[1, 2, 3], 3);
        place.model("n", &[3, 4], 3);
        place.left.store(calls, Ordering::Relaxed);
        // Moves, copies and removals fail somewhere.
        let _ = place.tier.execute(&place.plan(&after(0)), &Unwatched).await;
        for seed in 1..3 {
            let _ = place.read(seed).await;
        }
        place.store.names().remove("localhost/library/n:latest").expect("a removal");
        place.library.gc();
        let _ = place.tier.execute(&place.plan(&after(0)), &Unwatched).await;
        let _ = place.tier.reconcile().await;
        place.left.store(usize::MAX, Ordering::Relaxed);
        let place = place.reopened(TierPolicy::default());
        for seed in 1..4 {
            assert!(place.read(seed).await.expect("it is there") == layer(seed), "{calls} calls, blob {seed}");
        }
        place.move_all().await;
        place.tier.reconcile().await.expect("a comparison");
        assert_eq!(place.on_disk(1..5), [0_u8; 0], "{calls} calls");
        assert!(place.in_tier(1) && place.in_tier(2) && place.in_tier(3) && !place.in_tier(4), "{calls} calls");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_that_were_put_but_not_recorded_are_found_or_removed() {
    let place = TieredStore::new();
    place.model("m", &[1, 2], 3);
    place.move_all().await;
    // A process was killed after it had put blob 3, and another one after blob 2 of a model.
    let tier = place.tier.place().await.expect("the tier").clone();
    let orphan = Descriptor::blob(digest(3), layer(3).len() as u64);
    let bytes = futures_util::stream::iter([Ok(layer(3).into())]);
    tier.put(&orphan, Box::pin(bytes)).await.expect("a put");
    std::fs::remove_dir_all(place.folders[0].path().join("tier/blobs")).expect("the list is lost");
    let place = place.reopened(TierPolicy::default());
    assert!(place.read(2).await.is_err());
    let report = place.tier.reconcile().await.expect("a comparison");
    assert_eq!((report.found, report.removed, report.lost.len()), (2, 1, 0));
    assert!(!place.in_tier(3));
    assert!(place.read(2).await.expect("it is known again") == layer(2));
    assert_eq!(place.tier.reconcile().await.expect("a comparison"), crate::Reconciled::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_not_put() {
    let place = TieredStore::new();
    place.model("m", &[1], 3);
    let path = place.store.blobs().path(&digest(1));
    let mut wrong = layer(1);
    wrong[LAYER / 2] ^= 1;
    std::fs::remove_file(&path).and_then(|()| std::fs::write(&path, &wrong)).expect("damage");
    let moved = place.tier.execute(&place.plan(&after(0)), &Unwatched).await.expect("a move");
    assert!(moved.blobs == 0 && moved.failed[0].contains("damaged"), "{moved:?}");
    assert!(place.is_on_disk(1) && !place.in_tier(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_does_not_forget_its_tier() {
    let place = TieredStore::new();
    place.model("m", &[1], 3);
    place.move_all().await;
    let TieredStore { store, library, tier, folders, left } = place;
    drop((store, library, tier));
    {
        // Without a tier, the models are listed and the error names it.
        let store = Store::open(folders[0].path(), Options::default()).expect("a store");
        assert!(store.blobs().size(&digest(1)).expect("a size").is_some());
        let error = store.blobs().read(&digest(1), 1 << 20).expect_err("no tier").to_string();
        assert!(error.contains("LODE_TIER="), "{error}");
        // Another tier is refused while blobs are only in the first one.
        let options = TierOptions {
            location: "s3://other".to_owned(),
            policy: TierPolicy::default(),
            new_id: String::new(),
            open: Box::new(|_| Box::pin(async { Err(content::Error::Other("unused".into())) })),
            loaded: Box::new(HashSet::new),
        };
        let error = Tier::attach(&store, Library::new(store.clone()), options).expect_err("another tier").to_string();
        assert!(error.contains("lode tier recall --all"), "{error}");
    }
    let (store, library, tier) = open(folders[0].path(), folders[1].path(), TierPolicy::default(), &left);
    let place = TieredStore { store, library, tier, folders, left };
    assert!(place.read(1).await.expect("it comes back") == layer(1));
}

/// Moves, copies back, comparisons, collections and repeated creates run at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_when_everything_runs_at_once() {
    const ROUNDS: usize = 15;
    let place = Arc::new(TieredStore::new());
    place.model("m", &[1, 2, 3], 3);
    let all = |work: fn(Arc<TieredStore>) -> BoxFuture<'static, ()>| {
        let place = place.clone();
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                work(place.clone()).await;
            }
        })
    };
    let tasks = [
        all(|place| Box::pin(async move { drop(place.tier.execute(&place.plan(&after(0)), &Unwatched).await) })),
        all(|place| Box::pin(async move { drop(place.tier.execute(&place.plan(&after(0)), &Unwatched).await) })),
        all(|place| {
            Box::pin(async move {
                let report = place.tier.reconcile().await.expect("a comparison");
                assert_eq!(report.lost, []);
            })
        }),
        all(|place| {
            Box::pin(async move {
                for seed in 1..4 {
                    assert!(place.read(seed).await.expect("it is there") == layer(seed));
                }
            })
        }),
        all(|place| {
            Box::pin(async move {
                let own = place.clone();
                let work = tokio::task::spawn_blocking(move || {
                    own.model("n", &[4], 3);
                    own.store.names().remove("localhost/library/n:latest").expect("a removal");
                    own.library.gc();
                });
                work.await.expect("no panic");
            })
        }),
    ];
    for task in tasks {
        task.await.expect("no task fails");
    }
    place.library.gc();
    place.move_all().await;
    place.tier.reconcile().await.expect("a comparison");
    for seed in 1..4 {
        assert!(place.in_tier(seed) && place.read(seed).await.expect("it is there") == layer(seed));
    }
    assert!(!place.in_tier(4) && !place.is_on_disk(4));
}
