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
    let families = families(library, &found, &models, &names_of, &size);
    models.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
    let mut versions = HashSet::new();
    for (name, kept) in store.all_kept_versions() {
        versions.extend(kept.iter().filter_map(|digest| self::digests(library, &name, digest)).flatten());
    }
    let mut linked = HashSet::new();
    for document in store.documents() {
        // One that another has within has been walked, and what a name has counts there.
        if linked.contains(&document) || names_of.contains_key(&document) {
            continue;
        }
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

/// What families take together. `models` are those of `found`, in their order; `names_of` says how many names have a blob.
fn families(
    library: &Library,
    found: &[(TagEntry, Vec<Digest>)],
    models: &[ModelUsage],
    names_of: &HashMap<Digest, u64>,
    size: &dyn Fn(&Digest) -> u64,
) -> Vec<FamilyUsage> {
    // One that cannot be read is of no family.
    let family = |tag| library.summary_of(tag).map(|summary| summary.family.clone()).unwrap_or_default();
    let family_of: Vec<String> = found.iter().map(|(tag, _)| family(tag)).collect();
    let mut families: BTreeMap<&str, FamilyUsage> = BTreeMap::new();
    // Of which family a blob is; empty for several.
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
