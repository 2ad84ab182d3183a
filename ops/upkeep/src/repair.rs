//! Repair: fetches damaged and missing blobs again, and no others.

use std::collections::{HashMap, HashSet};

use content::ensure;
use content::operation::{Context, OperationError, Result};
use content::{Descriptor, Digest, Observer};
use library::{Error, Library, RequiredBlob, ensure_wanted};
use manifests::{Document, ModelRef};
use store::Verified;

use crate::problem::Problem;
use crate::verify::{complaint, verify_all};

/// Fetches blobs again from the registry that the model came from, and puts them into the store.
pub trait Fetcher: Sync {
    /// Fetches a config or a layer of a model.
    ///
    /// # Errors
    /// No registry has the blob, or the observer has canceled.
    fn fetch(&self, model: &ModelRef, blob: &Descriptor, observer: &dyn Observer) -> Result<()>;

    /// Fetches a model's manifest, of which only the digest is known.
    ///
    /// # Errors
    /// No registry has the manifest, or the observer has canceled.
    fn fetch_manifest(&self, model: &ModelRef, digest: &Digest, observer: &dyn Observer) -> Result<()>;
}

/// Result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Number of blobs that were read.
    pub blobs: u64,
    /// Blobs that were fetched again.
    pub repaired: Vec<RepairedBlob>,
    /// Blobs that are still damaged or missing.
    pub failed: Vec<Problem>,
}

/// A blob that was fetched again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedBlob {
    /// Its digest.
    pub digest: Digest,
    /// Name of the layer.
    pub layer: String,
    /// Name of the model.
    pub model: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// A manifest to repair: of a model, or without a tag.
struct Root {
    model: ModelRef,
    digest: Digest,
    /// Whether missing blobs are fetched. Untagged manifests, which clients pushed or a
    /// pull-through cache stored, can be incomplete.
    is_whole: bool,
}

/// A blob, with all models that need it: the registry of any of them may have it.
struct BlobToRepair {
    need: RequiredBlob,
    models: Vec<ModelRef>,
    is_whole: bool,
}

/// Reads every blob of the model, or of all models and all untagged documents. Damaged blobs are
/// fetched again, and also missing blobs of models.
///
/// A damaged blob is first moved aside, so that it is missing if it cannot be fetched. A model that
/// reports a missing blob is better than one that computes with wrong data. Earlier versions of
/// models are not repaired, because their registries no longer serve them.
///
/// # Errors
/// The model does not exist, the store cannot be read at all, or the caller has canceled.
pub fn repair(
    library: &Library,
    model: Option<&ModelRef>,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
) -> Result<RepairReport> {
    let report = repair_all(library, model, fetcher, observer);
    // Cached contents may have been read from damaged blobs.
    library.forget_contents();
    report
}

fn repair_all(
    library: &Library,
    model: Option<&ModelRef>,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
) -> Result<RepairReport> {
    // No readable document refers to the blobs that are fetched for a damaged manifest, so a guard
    // keeps them from collection.
    let _guard = library.guard();
    let roots = roots(library, model)?;
    let mut report = RepairReport::default();
    let wanted = mend_manifests(library, roots, fetcher, observer, &mut report)?;
    let blobs: Vec<(Digest, u64)> =
        wanted.iter().map(|wanted| (wanted.need.descriptor.digest, wanted.need.descriptor.size)).collect();
    report.blobs = blobs.len() as u64;
    observer.status(format!("reading {} blobs", blobs.len()));
    for ((digest, outcome), BlobToRepair { need, models, is_whole }) in
        verify_all(library, &blobs, observer)?.into_iter().zip(&wanted)
    {
        let Some(complaint) = complaint(library, &digest, &outcome, need.descriptor.size) else { continue };
        if matches!(outcome, Ok(Verified::Missing | Verified::SourceLost)) && !is_whole {
            continue;
        }
        // An unreadable blob is not known to be damaged. A good blob must not be moved because a
        // manifest states a wrong size.
        let whole = match &outcome {
            Err(error) => Some(OperationError::text(format!("{error}; it is not moved"))),
            Ok(Verified::WrongSize { .. }) if is_right(library, &digest, observer)? => {
                Some(OperationError::text("the blob is good, the manifest is wrong about its size"))
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
            // Another process has fetched the blob in the meantime.
            Ok(None) => {}
            Err(error) => {
                let error = error.context(complaint);
                report.failed.push(failure(&models[0], &digest, &need.layer, &error));
            }
        }
    }
    // Drops failures of manifests that one name's registry did not have and another's had.
    let repaired: HashSet<Digest> = report.repaired.iter().map(|blob| blob.digest).collect();
    report.failed.retain(|problem| problem.digest.is_none_or(|digest| !repaired.contains(&digest)));
    Ok(report)
}

/// Repairs the manifests and returns the blobs that they need.
fn mend_manifests(
    library: &Library,
    roots: Vec<Root>,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
    report: &mut RepairReport,
) -> Result<Vec<BlobToRepair>> {
    let mut all: Vec<BlobToRepair> = Vec::new();
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
                        all.push(BlobToRepair { need, models: Vec::new(), is_whole });
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

/// Returns the manifests to repair: that of the model, or of every model and every untagged
/// document.
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
        library.names().list_here().into_iter().map(|tag| (tag.name, tag.digest, true)).collect();
    let tagged: HashSet<Digest> = named.iter().map(|(_, digest, _)| *digest).collect();
    let linked = library.names().linked_documents().into_iter().filter(|linked| !tagged.contains(&linked.digest));
    named.extend(linked.map(|linked| (format!("{}@{}", linked.repository, linked.digest), linked.digest, false)));
    let mut roots = Vec::new();
    for (name, digest, is_whole) in named {
        match name.parse() {
            Ok(model) => roots.push(Root { model, digest, is_whole }),
            Err(error) => tracing::warn!("cannot repair `{name}`, its name is invalid: {error}"),
        }
    }
    Ok(roots)
}

/// Fetches a manifest again if its bytes do not match its digest. Its blobs are only known
/// afterwards.
fn mend_manifest(
    library: &Library,
    model: &ModelRef,
    digest: &Digest,
    fetcher: &dyn Fetcher,
    observer: &dyn Observer,
) -> Result<Option<RepairedBlob>> {
    if library.blobs().verify(digest, None, &mut |_| true)? == Verified::Good {
        return Ok(None);
    }
    let mut fetch = |model: &ModelRef| fetcher.fetch_manifest(model, digest, observer);
    let Some((model, bytes)) = mend(library, digest, None, std::slice::from_ref(model), &mut fetch)? else {
        return Ok(None);
    };
    let raw = library.blobs().read_verified(digest, manifests::MAX_MANIFEST as u64)?;
    library.describe(digest, &Document::parse(&raw)?);
    Ok(Some(RepairedBlob { digest: *digest, layer: "manifest".to_owned(), model: model.to_string(), bytes }))
}

/// Moves a blob aside and fetches it for one of the models that need it. Returns that model and the
/// blob's size in bytes. Returns `None` if the blob is good by now: all blobs are read before the
/// first repair, and another process may have fetched it in the meantime.
fn mend<'a>(
    library: &Library,
    digest: &Digest,
    size: Option<u64>,
    models: &'a [ModelRef],
    fetch: &mut dyn FnMut(&ModelRef) -> Result<()>,
) -> Result<Option<(&'a ModelRef, u64)>> {
    if is_good(library.blobs().verify(digest, size, &mut |_| true)?) {
        return Ok(None);
    }
    library.blobs().set_aside(digest)?;
    if let Some(size) = copied_back(library, digest)? {
        return Ok(Some((&models[0], size)));
    }
    let mut failed = None;
    let fetched = models.iter().find(|model| match fetch(model) {
        Ok(()) => true,
        Err(error) => {
            failed.get_or_insert(error);
            false
        }
    });
    let model = fetched.ok_or_else(|| failed.unwrap_or_else(|| OperationError::text("no model needs the blob")))?;
    let outcome = library.blobs().verify(digest, size, &mut |_| true)?;
    ensure!(outcome == Verified::Good, "the fetched blob is wrong, too: {outcome:?}");
    library.blobs().discard_damaged(digest)?;
    Ok(Some((model, library.blobs().size(digest)?.context("the blob was deleted after the repair")?)))
}

/// Whether nothing is known to be wrong with a blob.
fn is_good(verified: Verified) -> bool {
    matches!(verified, Verified::Good | Verified::InTier)
}

/// Whether the bytes of a blob have its digest. A blob that only the tier has is copied back
/// first.
fn is_right(library: &Library, digest: &Digest, observer: &dyn Observer) -> Result<bool> {
    Ok(match library.blobs().verify(digest, None, &mut |_| observer.goes_on())? {
        Verified::Good => true,
        Verified::InTier => library.blobs().open(digest)?.into_file().is_ok(),
        _ => false,
    })
}

/// Replaces a damaged blob by the tier's copy, if it has one; returns its size in bytes. If that
/// copy is damaged or lost, the blob is missing afterwards.
fn copied_back(library: &Library, digest: &Digest) -> Result<Option<u64>> {
    // Wrong bytes may have come from the way, not from the tier.
    library.blobs().retry_damaged_in_tier(digest)?;
    // Held, so that a file that is added meanwhile stays on the disk.
    let _held = library.hold(vec![*digest]);
    let verified = library.blobs().verify_in_tier(digest, None)?;
    if library.blobs().size_on_disk(digest)?.is_some() {
        return Ok(None);
    }
    match verified {
        Verified::InTier => {}
        Verified::WrongSize { .. } => return Ok(library.blobs().forget_damaged_in_tier(digest).map(|()| None)?),
        _ => return Ok(library.blobs().forget_lost_in_tier(digest).map(|()| None)?),
    }
    let blob = library.blobs().open(digest)?;
    let size = blob.size();
    match blob.into_file() {
        Ok(_) => {
            library.blobs().discard_damaged(digest)?;
            Ok(Some(size))
        }
        Err(_) if library.blobs().size(digest)?.is_none() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn failure(model: &ModelRef, digest: &Digest, layer: &str, error: &OperationError) -> Problem {
    Problem {
        digest: Some(*digest),
        layer: Some(layer.to_owned()),
        models: vec![model.to_string()],
        error: format!("blob `{digest}` of model '{model}', layer `{layer}`: {error:#}"),
    }
}

#[cfg(test)]
mod tests;
