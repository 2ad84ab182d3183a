//! Tests that repair incomplete stores from complete ones.

use content::{Expected, IngestId, Unwatched, bail};
use manifests::{Layer, ManifestBuilder, ModelConfig, annotations, media_types};
use store::{Options, Store};

use super::*;

/// A fetcher that copies blobs from the first store, which is complete, to the second.
struct Other(Library, Library);

impl Fetcher for Other {
    fn fetch(&self, _model: &ModelRef, blob: &Descriptor, _observer: &dyn Observer) -> Result<()> {
        put(&self.1, &self.0.blobs().read(&blob.digest, blob.size)?);
        Ok(())
    }

    fn fetch_manifest(&self, model: &ModelRef, digest: &Digest, _observer: &dyn Observer) -> Result<()> {
        if model.repository().ends_with("lost") {
            bail!("the registry does not have it any more");
        }
        put(&self.1, &self.0.blobs().read(digest, 1 << 20)?);
        Ok(())
    }
}

/// A fetcher whose registry lacks one model.
struct Deaf(Other, &'static str);

impl Fetcher for Deaf {
    fn fetch(&self, model: &ModelRef, blob: &Descriptor, observer: &dyn Observer) -> Result<()> {
        ensure!(!model.repository().ends_with(self.1), "the registry does not have it");
        self.0.fetch(model, blob, observer)
    }

    fn fetch_manifest(&self, model: &ModelRef, digest: &Digest, observer: &dyn Observer) -> Result<()> {
        self.0.fetch_manifest(model, digest, observer)
    }
}

fn put(library: &Library, bytes: &[u8]) -> Digest {
    let id = IngestId::parse("test").expect("an id");
    let mut ingest = library.blobs().start_ingest(&id, Expected::Unknown).expect("start");
    ingest.append(bytes).expect("write");
    ingest.commit().expect("commit").0
}

fn open() -> (tempfile::TempDir, Library) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a store");
    (folder, Library::new(store))
}

/// Creates a model with a config and two layers; returns the digests of the manifest and the
/// layers.
fn model(library: &Library, name: &str) -> [Digest; 3] {
    let config = ModelConfig::default().to_bytes().expect("a config");
    put(library, &config);
    let layers = [b"template".as_slice(), b"system"].map(|bytes| {
        put(library, bytes);
        Layer::new(Descriptor::of(media_types::TEMPLATE, bytes))
    });
    let manifest = ManifestBuilder {
        config: Descriptor::of(media_types::CONFIG, &config),
        layers: layers.to_vec(),
        annotations: [(annotations::TITLE.to_owned(), name.to_owned())].into(),
    };
    let digest = put(library, manifest.build().expect("a manifest").raw());
    let key = name.parse::<ModelRef>().expect("a name").tag_key().expect("a tag");
    library.names().set(&key, &digest).expect("tag");
    [digest, *layers[0].digest(), *layers[1].digest()]
}

fn damage(library: &Library, digest: &Digest, bytes: Option<&[u8]>) {
    std::fs::remove_file(library.blobs().path(digest)).expect("removal");
    if let Some(bytes) = bytes {
        std::fs::write(library.blobs().path(digest), bytes).expect("damage");
    }
}

#[test]
fn fetches_only_what_is_damaged() {
    let ((_a, whole), (_b, library)) = (open(), open());
    for name in ["m", "lost"] {
        assert_eq!(model(&whole, name), model(&library, name));
    }
    let [manifest, template, system] = model(&library, "m");
    let [lost, ..] = model(&library, "lost");
    let fetcher = Other(whole.clone(), library.clone());
    let done = repair(&library, None, &fetcher, &Unwatched).expect("repair");
    assert_eq!((done.blobs, done.repaired, done.failed), (5, vec![], vec![]), "nothing is wrong yet");

    damage(&library, &manifest, Some(b"{}"));
    damage(&library, &template, Some(b"tempLate"));
    damage(&library, &system, None);
    damage(&library, &lost, None);
    let one: ModelRef = "m".parse().expect("a name");
    let done = repair(&library, Some(&one), &fetcher, &Unwatched).expect("repair");
    let mut fetched: Vec<Digest> = done.repaired.into_iter().map(|blob| blob.digest).collect();
    fetched.sort();
    let mut expect = [manifest, template, system];
    expect.sort();
    assert_eq!((fetched.as_slice(), done.failed), (expect.as_slice(), vec![]));
    assert_eq!(library.blobs().damaged_bytes().expect("bytes"), 0, "damaged blobs go when there are good ones");

    let done = repair(&library, None, &fetcher, &Unwatched).expect("repair");
    assert_eq!((done.repaired.len(), done.failed.len()), (0, 1));
    assert!(done.failed[0].error.contains("does not have it any more"), "{:?}", done.failed);
    let unknown: ModelRef = "unknown".parse().expect("a name");
    assert!(repair(&library, Some(&unknown), &fetcher, &Unwatched).is_err());
}

#[test]
fn every_name_of_a_manifest_is_asked_for_it() {
    let ((_a, whole), (_b, library)) = (open(), open());
    let [manifest, ..] = model(&whole, "m");
    model(&library, "m");
    // The registry of the first name no longer has the model.
    let lost: ModelRef = "a/lost".parse().expect("a name");
    library.names().set(&lost.tag_key().expect("a tag"), &manifest).expect("a second name");
    damage(&library, &manifest, None);
    let fetcher = Other(whole.clone(), library.clone());
    let done = repair(&library, None, &fetcher, &Unwatched).expect("repair");
    assert_eq!((done.repaired.len(), done.failed.len()), (1, 0), "{done:?}");
    assert!(library.blobs().size(&manifest).expect("a look").is_some());
}

#[test]
fn every_model_of_a_blob_is_asked_for_it() {
    let ((_a, whole), (_b, library)) = (open(), open());
    for name in ["a", "m"] {
        assert_eq!(model(&whole, name), model(&library, name));
    }
    let [_, template, _] = model(&library, "m");
    damage(&library, &template, Some(b"tempLate"));
    let fetcher = Other(whole.clone(), library.clone());
    let done = repair(&library, None, &Deaf(fetcher, "a"), &Unwatched).expect("repair");
    assert_eq!((done.repaired.len(), done.failed), (1, vec![]));
    assert_eq!(done.repaired[0].model, "m:latest");
}

#[test]
fn what_passed_through_need_not_be_whole() {
    let ((_a, whole), (_b, library)) = (open(), open());
    model(&whole, "m");
    let [manifest, template, system] = model(&library, "m");
    library.names().link("example.org/other", store::LinkKind::Manifest, &manifest).expect("a link");
    library.names().remove(&"m".parse::<ModelRef>().expect("a name").tag_key().expect("a tag")).expect("removal");
    damage(&library, &template, None);
    damage(&library, &system, Some(b"sYstem"));
    let fetcher = Other(whole.clone(), library.clone());
    let done = repair(&library, None, &fetcher, &Unwatched).expect("repair");
    assert_eq!((done.repaired.len(), done.repaired[0].digest, done.failed), (1, system, vec![]));
    let now = std::time::SystemTime::now();
    let found = crate::fsck(&library, crate::Selection::All, now, &Unwatched).expect("a look");
    assert_eq!(found.problems, vec![], "what is missing may never have been here");
    let named: ModelRef = format!("example.org/other@{manifest}").parse().expect("a name");
    let done = repair(&library, Some(&named), &fetcher, &Unwatched).expect("repair");
    assert_eq!(done.repaired.len(), 1, "whoever names it wants all of it");
}

#[test]
fn what_is_good_by_now_stays() {
    let (_folder, library) = open();
    let [_, template, _] = model(&library, "m");
    let models = ["m".parse().expect("a name")];
    let mended = mend(&library, &template, Some(8), &models, &mut |_| bail!("nobody gives it")).expect("a look");
    assert!(mended.is_none() && library.blobs().size(&template).expect("a look").is_some());
}
