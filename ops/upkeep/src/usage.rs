//! What models take on the disk, and what of it they share.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::SystemTime;

use anyhow::Result;
use content::Digest;
use library::Library;
use manifests::ModelRef;
use store::TagEntry;

/// What takes how much space, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The largest first.
    pub models: Vec<ModelUsage>,
    /// The families of models, the largest first.
    pub families: Vec<FamilyUsage>,
    /// How many blobs there are.
    pub blobs: u64,
    /// All of them.
    pub bytes: u64,
    /// Those that only earlier versions of models need.
    pub version_bytes: u64,
    /// Those that only documents without a tag need: clients of the registry sent them.
    pub linked_bytes: u64,
    /// Those that nothing needs.
    pub unreferenced_bytes: u64,
    /// What was begun and is not complete.
    pub ingest_bytes: u64,
    /// What was moved out of sight by a repair.
    pub damaged_bytes: u64,
    /// Free on the disk.
    pub free_bytes: u64,
}

/// What a model takes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    /// As people write it.
    pub name: String,
    /// Of its manifest.
    pub digest: Digest,
    /// All of it.
    pub bytes: u64,
    /// What no other model needs.
    pub unique_bytes: u64,
    /// What others need, too.
    pub shared_bytes: u64,
    /// Whether it is protected from being removed.
    pub pinned: bool,
    /// When it was last loaded, or got its name where that was later.
    pub used: SystemTime,
}

/// What the models of a family take together, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyUsage {
    /// What it is called; empty for models of none, and for what models of several families have.
    pub family: String,
    /// All blobs that its models have and no other family's, each once.
    pub bytes: u64,
    /// Those of them that several names have.
    pub shared_bytes: u64,
    /// The names of its models.
    pub models: Vec<String>,
}

/// Measures everything. Sizes are those on the disk; a blob that is missing has none.
///
/// # Errors
/// The store cannot be read.
pub fn usage(library: &Library) -> Result<Usage> {
    let store = &library.store;
    let blobs: HashMap<Digest, u64> = store.blobs().into_iter().collect();
    let pins: HashSet<String> = store.pins().into_iter().collect();
    let mut found = Vec::new();
    let mut names_of: HashMap<Digest, u64> = HashMap::new();
    for tag in store.tags() {
        let Some(digests) = digests(library, &tag.name, &tag.digest) else { continue };
        for digest in &digests {
            *names_of.entry(*digest).or_default() += 1;
        }
        found.push((tag, digests));
    }
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
            pinned: pins.contains(&tag.name),
            used: library.last_used(tag)?,
        });
    }
    let families = families(library, &found, &models, &size);
    models.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
    let mut versions = HashSet::new();
    for (name, kept) in store.all_kept_versions() {
        versions.extend(kept.iter().filter_map(|digest| self::digests(library, &name, digest)).flatten());
    }
    let mut linked = HashSet::new();
    for document in store.documents() {
        linked.extend(self::digests(library, "", &document).unwrap_or_default());
    }
    let (mut version_bytes, mut linked_bytes, mut unreferenced_bytes) = (0, 0, 0);
    for (digest, size) in &blobs {
        let group = match digest {
            named if names_of.contains_key(named) => continue,
            old if versions.contains(old) => &mut version_bytes,
            sent if linked.contains(sent) => &mut linked_bytes,
            _ => &mut unreferenced_bytes,
        };
        *group += size;
    }
    Ok(Usage {
        models,
        families,
        blobs: blobs.len() as u64,
        bytes: blobs.values().sum(),
        version_bytes,
        linked_bytes,
        unreferenced_bytes,
        ingest_bytes: store.ingests(SystemTime::now())?.iter().map(|ingest| ingest.bytes).sum(),
        damaged_bytes: store.damaged_bytes()?,
        free_bytes: store.free_space()?,
    })
}

/// What families take together. `models` are those of `found`, in their order.
fn families(
    library: &Library,
    found: &[(TagEntry, Vec<Digest>)],
    models: &[ModelUsage],
    size: &dyn Fn(&Digest) -> u64,
) -> Vec<FamilyUsage> {
    // One that cannot be listed is of no family.
    let listed = library.list().unwrap_or_default().into_iter();
    let family_of: HashMap<Digest, String> =
        listed.map(|listed| (listed.summary.digest, listed.summary.family.clone())).collect();
    let mut families: BTreeMap<String, FamilyUsage> = BTreeMap::new();
    // Of which family a blob is, empty for several, and how many names have it.
    let mut blobs: HashMap<Digest, (String, u64)> = HashMap::new();
    for ((tag, digests), model) in found.iter().zip(models) {
        let family = family_of.get(&tag.digest).cloned().unwrap_or_default();
        families.entry(family.clone()).or_default().models.push(model.name.clone());
        for digest in digests {
            let (known, names) = blobs.entry(*digest).or_insert_with(|| (family.clone(), 0));
            *names += 1;
            if *known != family {
                known.clear();
            }
        }
    }
    for (digest, (family, names)) in blobs {
        let usage = families.entry(family).or_default();
        usage.bytes += size(&digest);
        usage.shared_bytes += if names > 1 { size(&digest) } else { 0 };
    }
    let named = families.into_iter().map(|(family, usage)| FamilyUsage { family, ..usage });
    let mut all: Vec<FamilyUsage> = named.collect();
    all.sort_by_key(|usage| Reverse(usage.bytes));
    all
}

/// The blobs of a version of a model. One that cannot be read must not hide the others.
fn digests(library: &Library, name: &str, digest: &Digest) -> Option<Vec<Digest>> {
    match library.needs(digest) {
        Ok(needs) => Some(needs.into_iter().map(|need| need.descriptor.digest).collect()),
        Err(error) => {
            tracing::warn!(model = name, %digest, "cannot be measured: {error:#}");
            None
        }
    }
}
