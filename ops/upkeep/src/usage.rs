//! Disk usage of models, and how much of it they share.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::SystemTime;

use content::Digest;
use content::operation::Result;
use library::Library;
use manifests::ModelRef;
use store::TagEntry;

/// Disk usage of a store, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Usage of each model, the largest first.
    pub models: Vec<ModelUsage>,
    /// Usage of each model family, the largest first.
    pub families: Vec<FamilyUsage>,
    /// Number of blobs.
    pub blobs: u64,
    /// Bytes of all blobs.
    pub bytes: u64,
    /// Bytes of blobs that only earlier versions of models need.
    pub version_bytes: u64,
    /// Bytes of blobs that only untagged documents need, which clients of the registry pushed.
    pub linked_bytes: u64,
    /// Bytes of unreferenced blobs.
    pub unreferenced_bytes: u64,
    /// Bytes of incomplete ingests.
    pub ingest_bytes: u64,
    /// Bytes of damaged blobs that a repair moved aside.
    pub damaged_bytes: u64,
    /// Bytes of blobs that only the tier has.
    pub tier_bytes: u64,
    /// Bytes of blobs that lie in other files: adopted models.
    pub adopted_bytes: u64,
    /// Bytes of the models' blobs that are only in roots.
    pub root_bytes: u64,
    /// Free bytes on the disk.
    pub free_bytes: u64,
}

/// Disk usage of a model, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    /// Name of the model, as users write it.
    pub name: String,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Bytes of all its blobs.
    pub bytes: u64,
    /// Bytes of blobs that no other model needs.
    pub unique_bytes: u64,
    /// Bytes of blobs that other models need, too.
    pub shared_bytes: u64,
    /// Bytes of its blobs that lie in other files. They are not part of the other sizes.
    pub adopted_bytes: u64,
    /// Whether the model is protected from removal.
    pub pinned: bool,
    /// When the model was last loaded or last got its name, whichever is later.
    pub used: SystemTime,
}

/// Disk usage of the models of a family, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyUsage {
    /// Name of the family; empty for models without a family and for blobs that several families
    /// share.
    pub family: String,
    /// Bytes of all blobs that only models of this family have, each counted once.
    pub bytes: u64,
    /// Of these, the bytes of blobs that several models share.
    pub shared_bytes: u64,
    /// Names of the family's models.
    pub models: Vec<String>,
}

/// Returns the blobs of earlier versions of models.
fn blobs_of_versions(library: &Library) -> HashSet<Digest> {
    let kept = library.names().all_kept_versions();
    let versions = kept.iter().flat_map(|(name, kept)| kept.iter().map(move |digest| (name, digest)));
    versions.filter_map(|(name, digest)| digests(library, name, digest)).flatten().collect()
}

/// Returns the blobs of documents without a tag. `named` are the blobs of models.
fn blobs_of_untagged(library: &Library, named: &HashMap<Digest, u64>) -> HashSet<Digest> {
    let mut untagged = HashSet::new();
    for document in library.notes().documents() {
        // Documents inside another document have already been walked; blobs of named models count
        // for the models.
        if !untagged.contains(&document) && !named.contains_key(&document) {
            untagged.extend(digests(library, "", &document).unwrap_or_default());
        }
    }
    untagged
}

/// Bytes of a store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBytes {
    /// Bytes of all blobs.
    pub stored: u64,
    /// Bytes that are not stored because models share blobs.
    pub shared: u64,
}

/// Measures the bytes of a store in little memory, as [`usage`] for stores of any size.
pub fn stored_bytes(library: &Library) -> StoredBytes {
    let (mut seen, mut shared) = (HashSet::new(), 0);
    for tag in library.names().list() {
        // A model that cannot be read shares nothing.
        for need in library.needs(&tag.digest).unwrap_or_default() {
            if !seen.insert(need.descriptor.digest.fingerprint()) {
                shared += need.descriptor.size;
            }
        }
    }
    StoredBytes { stored: library.stored_bytes(), shared }
}

/// Measures the disk usage of the store. Sizes are those on disk; a blob that is missing, lies in
/// other files, or is only in the tier, counts as zero.
///
/// # Errors
/// The store cannot be read.
pub fn usage(library: &Library) -> Result<DiskUsage> {
    let blobs: HashMap<Digest, u64> = library.blobs().list().into_iter().collect();
    let pins: HashSet<String> = library.names().pins().into_iter().collect();
    let mut found = Vec::new();
    let mut names_of: HashMap<Digest, u64> = HashMap::new();
    for tag in library.names().list() {
        let Some(digests) = digests(library, &tag.name, &tag.digest) else { continue };
        for digest in &digests {
            *names_of.entry(*digest).or_default() += 1;
        }
        found.push((tag, digests));
    }
    let adopted = adopted_blobs(library);
    let in_root = |digest: &Digest| library.blobs().size_in_roots(digest);
    let size = |digest: &Digest| blobs.get(digest).copied().unwrap_or(0);
    let mut models = Vec::with_capacity(found.len());
    for (tag, digests) in &found {
        let bytes = digests.iter().map(size).sum();
        let unique_bytes = digests.iter().filter(|digest| names_of.get(digest) == Some(&1)).map(size).sum();
        models.push(ModelUsage {
            name: tag.name.parse::<ModelRef>()?.to_string(),
            digest: tag.digest,
            bytes,
            unique_bytes,
            shared_bytes: bytes - unique_bytes,
            adopted_bytes: digests.iter().filter_map(|digest| adopted.get(digest)).sum(),
            pinned: pins.contains(&tag.name),
            used: library.last_used(tag)?,
        });
    }
    let families = families(library, &found, &models, &names_of, &size);
    models.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
    let versions = blobs_of_versions(library);
    let linked = blobs_of_untagged(library, &names_of);
    let tier_bytes = bytes_only_in_tier(library);
    let [mut version_bytes, mut linked_bytes, mut unreferenced_bytes] = [0; 3];
    for (digest, size) in blobs.iter().filter(|(digest, _)| !names_of.contains_key(digest)) {
        let group = match digest {
            old if versions.contains(old) => &mut version_bytes,
            sent if linked.contains(sent) => &mut linked_bytes,
            _ => &mut unreferenced_bytes,
        };
        *group += size;
    }
    let is_elsewhere = |digest: &&Digest| !blobs.contains_key(digest) && !adopted.contains_key(digest);
    Ok(DiskUsage {
        models,
        families,
        blobs: blobs.len() as u64,
        bytes: blobs.values().sum(),
        version_bytes,
        linked_bytes,
        unreferenced_bytes,
        ingest_bytes: library.blobs().ingests(SystemTime::now())?.iter().map(|ingest| ingest.bytes).sum(),
        damaged_bytes: library.blobs().damaged_bytes()?,
        tier_bytes,
        adopted_bytes: adopted.values().sum(),
        root_bytes: names_of.keys().filter(is_elsewhere).filter_map(in_root).sum(),
        free_bytes: library.free_space()?,
    })
}

fn bytes_only_in_tier(library: &Library) -> u64 {
    let mut bytes = 0;
    for error in library.blobs().each_only_in_tier(|_, size| bytes += size) {
        tracing::warn!("{error}");
    }
    bytes
}

/// Returns the blobs that lie in other files, with their sizes in bytes.
fn adopted_blobs(library: &Library) -> HashMap<Digest, u64> {
    let mut adopted = HashMap::new();
    let unreadable = library.blobs().each_in_files(|digest, size| {
        adopted.insert(digest, size);
    });
    for error in unreadable {
        tracing::warn!("{error}");
    }
    adopted
}

/// Returns the usage by family. `models` corresponds to `found` in its order; `names_of` maps a
/// blob to its number of names.
fn families(
    library: &Library,
    found: &[(TagEntry, Vec<Digest>)],
    models: &[ModelUsage],
    names_of: &HashMap<Digest, u64>,
    size: &dyn Fn(&Digest) -> u64,
) -> Vec<FamilyUsage> {
    // A model that cannot be read belongs to no family.
    let family = |tag| library.summary_of(tag).map(|summary| summary.family.clone()).unwrap_or_default();
    let family_of: Vec<String> = found.iter().map(|(tag, _)| family(tag)).collect();
    let mut families: BTreeMap<&str, FamilyUsage> = BTreeMap::new();
    // Family of each blob; empty if several families have it.
    let mut blobs: HashMap<Digest, &str> = HashMap::new();
    for (((_, digests), model), family) in found.iter().zip(models).zip(&family_of) {
        families.entry(family).or_default().models.push(model.name.clone());
        for digest in digests {
            let known = blobs.entry(*digest).or_insert(family);
            if *known != family {
                *known = "";
            }
        }
    }
    for (digest, family) in blobs {
        let usage = families.entry(family).or_default();
        usage.bytes += size(&digest);
        let is_shared = names_of.get(&digest).is_some_and(|names| *names > 1);
        usage.shared_bytes += if is_shared { size(&digest) } else { 0 };
    }
    let named = families.into_iter().map(|(family, usage)| FamilyUsage { family: family.to_owned(), ..usage });
    let mut all: Vec<FamilyUsage> = named.collect();
    all.sort_by_key(|usage| Reverse(usage.bytes));
    all
}

/// Returns the blobs of a version of a model; `None`, with a warning, if it cannot be read, so that
/// it does not hide the rest.
fn digests(library: &Library, name: &str, digest: &Digest) -> Option<Vec<Digest>> {
    match library.needs(digest) {
        Ok(needs) => Some(needs.into_iter().map(|need| need.descriptor.digest).collect()),
        Err(error) => {
            tracing::warn!(model = name, %digest, "cannot measure the disk usage of a model: {error:#}");
            None
        }
    }
}
