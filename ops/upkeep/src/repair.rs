//! Fetching damaged and missing blobs again, and only those.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, ensure};
use content::{Descriptor, Digest};
use library::{Error, Library, Need, Observer, ensure_wanted};
use manifests::{Document, ModelRef};
use store::Verified;

use crate::problem::Problem;
use crate::verify::{complaint, verify_all};

/// Where blobs come from again: from where their model came. What is fetched is put into the store.
pub trait Fetcher: Sync {
    /// Fetches a config or a layer of a model.
    ///
    /// # Errors
    /// Nobody gives it any more, or the observer says not to go on.
    fn fetch(&self, model: &ModelRef, blob: &Descriptor, observer: &dyn Observer) -> Result<()>;

    /// Fetches a model's manifest, of which nothing but the digest is known.
    ///
    /// # Errors
    /// Nobody gives it any more, or the observer says not to go on.
    fn fetch_manifest(&self, model: &ModelRef, digest: &Digest, observer: &dyn Observer) -> Result<()>;
}

/// What was read and what was fetched again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Blobs that were read.
    pub blobs: u64,
    /// Those that were fetched again.
    pub repaired: Vec<RepairedBlob>,
    /// Those that are damaged still.
    pub failed: Vec<Problem>,
}

/// A blob that was fetched again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedBlob {
    /// Its digest.
    pub digest: Digest,
    /// What the model calls it.
    pub layer: String,
    /// The model.
    pub model: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What is looked at: a model, or a document without a tag.
struct Root {
    model: ModelRef,
    digest: Digest,
    /// Whether what is missing of it is fetched. What others put here, or what passed through, need not be whole.
    is_whole: bool,
}

/// A blob, with all that need it: one of them may know who has it.
struct Wanted {
    need: Need,
    models: Vec<ModelRef>,
    is_whole: bool,
}

/// Reads every blob of the model, or of all models and all documents without a tag, and fetches again what is damaged, and of models what
/// is missing.
///
/// A damaged blob is set aside first, so that it is missing where it cannot be fetched: a model that says what it lacks is
/// better than one that computes nonsense. Earlier versions of models are not repaired; nobody serves them any more.
///
/// # Errors
/// There is no such model, the store cannot be read at all, or nobody waits any more.
pub fn repair(
    library: &Library,
    model: Option<&ModelRef>,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
) -> Result<RepairReport> {
    let report = repair_all(library, model, fetcher, observer);
    // What was read before may have been damaged.
    library.forget_contents();
    report
}

fn repair_all(
    library: &Library,
    model: Option<&ModelRef>,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
) -> Result<RepairReport> {
    // What is fetched for a damaged manifest is referred to by nothing that can be read.
    let _guard = library.store.guard();
    let roots = roots(library, model)?;
    let mut report = RepairReport::default();
    let wanted = mend_manifests(library, roots, fetcher, observer, &mut report)?;
    let blobs: Vec<(Digest, u64)> =
        wanted.iter().map(|wanted| (wanted.need.descriptor.digest, wanted.need.descriptor.size)).collect();
    report.blobs = blobs.len() as u64;
    observer.status(format!("reading {} blobs", blobs.len()));
    for ((digest, outcome), Wanted { need, models, is_whole }) in
        verify_all(library, &blobs, observer)?.into_iter().zip(&wanted)
    {
        let Some(complaint) = complaint(&outcome, need.descriptor.size) else { continue };
        if matches!(outcome, Ok(Verified::Missing)) && !is_whole {
            continue;
        }
        // What cannot be read is not damaged, and what is whole is not to be moved because a manifest is wrong about it.
        let whole = match &outcome {
            Err(error) => Some(anyhow::anyhow!("{error}; it stays where it is")),
            Ok(Verified::WrongSize { .. })
                if library.store.verify(&digest, None, &mut |_| observer.goes_on())? == Verified::Good =>
            {
                Some(anyhow::anyhow!("the blob is good, the manifest is wrong about its size"))
            }
            Ok(_) => None,
        };
        if let Some(error) = whole {
            report.failed.push(failure(&models[0], &digest, &need.layer, &error));
            continue;
        }
        ensure_wanted(observer)?;
        observer.status(format!("blob {digest} of `{}`: {complaint}; fetching it again", need.layer));
        let mut fetch = |model: &ModelRef| fetcher.fetch(model, &need.descriptor, observer);
        match mend(library, &digest, Some(need.descriptor.size), models, &mut fetch) {
            Ok(Some((model, bytes))) => report.repaired.push(RepairedBlob {
                digest,
                layer: need.layer.clone(),
                model: model.to_string(),
                bytes,
            }),
            // Somebody else has fetched it meanwhile.
            Ok(None) => {}
            Err(error) => {
                let error = error.context(complaint);
                report.failed.push(failure(&models[0], &digest, &need.layer, &error));
            }
        }
    }
    // A manifest that one name's registry does not have, and another's has.
    let repaired: HashSet<Digest> = report.repaired.iter().map(|blob| blob.digest).collect();
    report.failed.retain(|problem| problem.digest.is_none_or(|digest| !repaired.contains(&digest)));
    Ok(report)
}

/// Mends the manifests, and says which blobs they need.
fn mend_manifests(
    library: &Library,
    roots: Vec<Root>,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
    report: &mut RepairReport,
) -> Result<Vec<Wanted>> {
    let mut all: Vec<Wanted> = Vec::new();
    let mut places: HashMap<Digest, usize> = HashMap::new();
    for Root { model, digest: root, is_whole } in roots {
        ensure_wanted(observer)?;
        let mended = mend_manifest(library, &model, &root, fetcher, observer);
        report.repaired.extend(mended.as_ref().ok().cloned().flatten());
        match mended.and_then(|_| library.needs(&root)) {
            Ok(found) => {
                for need in found {
                    let place = *places.entry(need.descriptor.digest).or_insert(all.len());
                    if place == all.len() {
                        all.push(Wanted { need, models: Vec::new(), is_whole });
                    }
                    all[place].models.push(model.clone());
                    all[place].is_whole |= is_whole;
                }
            }
            Err(error) => report.failed.push(failure(&model, &root, "manifest", &error)),
        }
    }
    Ok(all)
}

/// What to repair: the model, or every model and every document without a tag.
fn roots(library: &Library, model: Option<&ModelRef>) -> Result<Vec<Root>> {
    let not_found = |reference: &ModelRef| Error::NotFound(reference.to_string());
    if let Some(reference) = model {
        if let Some(linked) = library.find_linked(reference)? {
            return Ok(vec![Root { model: reference.clone(), digest: linked.digest, is_whole: true }]);
        }
        let tag = library.find_tag(reference)?.ok_or_else(|| not_found(reference))?;
        return Ok(vec![Root { model: tag.name.parse()?, digest: tag.digest, is_whole: true }]);
    }
    let mut named: Vec<(String, Digest, bool)> =
        library.store.tags().into_iter().map(|tag| (tag.name, tag.digest, true)).collect();
    let tagged: HashSet<Digest> = named.iter().map(|(_, digest, _)| *digest).collect();
    let linked = library.store.linked_documents().into_iter().filter(|linked| !tagged.contains(&linked.digest));
    named.extend(linked.map(|linked| (format!("{}@{}", linked.repository, linked.digest), linked.digest, false)));
    let mut roots = Vec::new();
    for (name, digest, is_whole) in named {
        match name.parse() {
            Ok(model) => roots.push(Root { model, digest, is_whole }),
            Err(error) => tracing::warn!("it is not known where `{name}` could be fetched from again: {error}"),
        }
    }
    Ok(roots)
}

/// Fetches the manifest again where it is not what its digest says; its blobs are known only then.
fn mend_manifest(
    library: &Library,
    model: &ModelRef,
    digest: &Digest,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
) -> Result<Option<RepairedBlob>> {
    if library.store.verify(digest, None, &mut |_| true)? == Verified::Good {
        return Ok(None);
    }
    let mut fetch = |model: &ModelRef| fetcher.fetch_manifest(model, digest, observer);
    let Some((model, bytes)) = mend(library, digest, None, std::slice::from_ref(model), &mut fetch)? else {
        return Ok(None);
    };
    let raw = library.store.read_sound(digest, manifests::MAX_MANIFEST as u64)?;
    library.describe(digest, &Document::parse(&raw)?);
    Ok(Some(RepairedBlob { digest: *digest, layer: "manifest".to_owned(), model: model.to_string(), bytes }))
}

/// Sets a blob aside and has it fetched for one of the models that need it; says for which, and its size in bytes. `None` where it is good
/// by now: all blobs are read before the first is mended, and somebody may have fetched it meanwhile.
fn mend<'a>(
    library: &Library,
    digest: &Digest,
    size: Option<u64>,
    models: &'a [ModelRef],
    fetch: &mut dyn FnMut(&ModelRef) -> Result<()>,
) -> Result<Option<(&'a ModelRef, u64)>> {
    let store = &library.store;
    if store.verify(digest, size, &mut |_| true)? == Verified::Good {
        return Ok(None);
    }
    store.set_aside(digest)?;
    let mut failed = None;
    let fetched = models.iter().find(|model| match fetch(model) {
        Ok(()) => true,
        Err(error) => {
            failed.get_or_insert(error);
            false
        }
    });
    let model = fetched.ok_or_else(|| failed.unwrap_or_else(|| anyhow::anyhow!("nobody needs it")))?;
    let outcome = store.verify(digest, size, &mut |_| true)?;
    ensure!(outcome == Verified::Good, "what was fetched is not it either: {outcome:?}");
    store.discard_damaged(digest)?;
    Ok(Some((model, store.blob_size(digest)?.context("it vanished again")?)))
}

fn failure(model: &ModelRef, digest: &Digest, layer: &str, error: &anyhow::Error) -> Problem {
    Problem {
        digest: Some(*digest),
        layer: Some(layer.to_owned()),
        models: vec![model.to_string()],
        error: format!("blob `{digest}` of model '{model}', layer `{layer}`: {error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use content::{Expected, IngestId};
    use library::Unwatched;
    use manifests::{Layer, ManifestBuilder, ModelConfig, annotations, media_types};
    use store::{Options, Store};

    use super::*;

    /// A store with everything, from which another is repaired.
    struct Other(Store, Store);

    impl Fetcher for Other {
        fn fetch(&self, _model: &ModelRef, blob: &Descriptor, _observer: &dyn Observer) -> Result<()> {
            put(&self.1, &self.0.read_blob(&blob.digest, blob.size)?);
            Ok(())
        }

        fn fetch_manifest(&self, model: &ModelRef, digest: &Digest, _observer: &dyn Observer) -> Result<()> {
            if model.repository().ends_with("lost") {
                bail!("the registry does not have it any more");
            }
            put(&self.1, &self.0.read_blob(digest, 1 << 20)?);
            Ok(())
        }
    }

    /// Another that says nothing of one model.
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

    fn put(store: &Store, bytes: &[u8]) -> Digest {
        let id = IngestId::parse("test").expect("an id");
        let mut ingest = store.start_ingest(&id, Expected::Unknown).expect("start");
        ingest.append(bytes).expect("write");
        ingest.commit().expect("commit").0
    }

    fn open() -> (tempfile::TempDir, Library) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), Options::default()).expect("a store");
        (folder, Library::new(store))
    }

    /// A model of a config and two layers; its manifest and the layers.
    fn model(store: &Store, name: &str) -> [Digest; 3] {
        let config = ModelConfig::default().to_bytes().expect("a config");
        put(store, &config);
        let layers = [b"template".as_slice(), b"system"].map(|bytes| {
            put(store, bytes);
            Layer::new(Descriptor::of(media_types::TEMPLATE, bytes))
        });
        let manifest = ManifestBuilder {
            config: Descriptor::of(media_types::CONFIG, &config),
            layers: layers.to_vec(),
            annotations: [(annotations::TITLE.to_owned(), name.to_owned())].into(),
        };
        let digest = put(store, manifest.build().expect("a manifest").raw());
        let key = name.parse::<ModelRef>().expect("a name").tag_key().expect("a tag");
        store.set_tag(&key, &digest).expect("tag");
        [digest, *layers[0].digest(), *layers[1].digest()]
    }

    fn damage(store: &Store, digest: &Digest, bytes: Option<&[u8]>) {
        std::fs::remove_file(store.path(digest)).expect("removal");
        if let Some(bytes) = bytes {
            std::fs::write(store.path(digest), bytes).expect("damage");
        }
    }

    #[test]
    fn fetches_only_what_is_damaged() {
        let ((_a, whole), (_b, library)) = (open(), open());
        let store = &library.store;
        for name in ["m", "lost"] {
            assert_eq!(model(&whole.store, name), model(store, name));
        }
        let [manifest, template, system] = model(store, "m");
        let [lost, ..] = model(store, "lost");
        let fetcher = Other(whole.store.clone(), store.clone());
        let done = repair(&library, None, &fetcher, &Unwatched).expect("repair");
        assert_eq!((done.blobs, done.repaired, done.failed), (5, vec![], vec![]), "nothing is wrong yet");

        damage(store, &manifest, Some(b"{}"));
        damage(store, &template, Some(b"tempLate"));
        damage(store, &system, None);
        damage(store, &lost, None);
        let one: ModelRef = "m".parse().expect("a name");
        let done = repair(&library, Some(&one), &fetcher, &Unwatched).expect("repair");
        let mut fetched: Vec<Digest> = done.repaired.into_iter().map(|blob| blob.digest).collect();
        fetched.sort();
        let mut expect = [manifest, template, system];
        expect.sort();
        assert_eq!((fetched.as_slice(), done.failed), (expect.as_slice(), vec![]));
        assert_eq!(store.damaged_bytes().expect("bytes"), 0, "damaged blobs go when there are good ones");

        let done = repair(&library, None, &fetcher, &Unwatched).expect("repair");
        assert_eq!((done.repaired.len(), done.failed.len()), (0, 1));
        assert!(done.failed[0].error.contains("does not have it any more"), "{:?}", done.failed);
        let unknown: ModelRef = "unknown".parse().expect("a name");
        assert!(repair(&library, Some(&unknown), &fetcher, &Unwatched).is_err());
    }

    #[test]
    fn every_name_of_a_manifest_is_asked_for_it() {
        let ((_a, whole), (_b, library)) = (open(), open());
        let [manifest, ..] = model(&whole.store, "m");
        let store = &library.store;
        model(store, "m");
        // The first of the two names is one whose registry has nothing any more.
        let lost: ModelRef = "a/lost".parse().expect("a name");
        store.set_tag(&lost.tag_key().expect("a tag"), &manifest).expect("a second name");
        damage(store, &manifest, None);
        let fetcher = Other(whole.store.clone(), store.clone());
        let done = repair(&library, None, &fetcher, &Unwatched).expect("repair");
        assert_eq!((done.repaired.len(), done.failed.len()), (1, 0), "{done:?}");
        assert!(store.blob_size(&manifest).expect("a look").is_some());
    }

    #[test]
    fn every_model_of_a_blob_is_asked_for_it() {
        let ((_a, whole), (_b, library)) = (open(), open());
        let store = &library.store;
        for name in ["a", "m"] {
            assert_eq!(model(&whole.store, name), model(store, name));
        }
        let [_, template, _] = model(store, "m");
        damage(store, &template, Some(b"tempLate"));
        let fetcher = Other(whole.store.clone(), store.clone());
        let done = repair(&library, None, &Deaf(fetcher, "a"), &Unwatched).expect("repair");
        assert_eq!((done.repaired.len(), done.failed), (1, vec![]));
        assert_eq!(done.repaired[0].model, "m:latest");
    }

    #[test]
    fn what_passed_through_need_not_be_whole() {
        let ((_a, whole), (_b, library)) = (open(), open());
        let store = &library.store;
        model(&whole.store, "m");
        let [manifest, template, system] = model(store, "m");
        store.link("example.org/other", store::LinkKind::Manifest, &manifest).expect("a link");
        store.remove_tag(&"m".parse::<ModelRef>().expect("a name").tag_key().expect("a tag")).expect("removal");
        damage(store, &template, None);
        damage(store, &system, Some(b"sYstem"));
        let fetcher = Other(whole.store.clone(), store.clone());
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
        let [_, template, _] = model(&library.store, "m");
        let models = ["m".parse().expect("a name")];
        let mended = mend(&library, &template, Some(8), &models, &mut |_| bail!("nobody gives it")).expect("a look");
        assert!(mended.is_none() && library.store.blob_size(&template).expect("a look").is_some());
    }
}
