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
mod tests;
