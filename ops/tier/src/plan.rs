//! Which blobs move to the tier.
//!
//! A blob was last used when the last of the models that have it was, or when it last came back
//! from the tier. Memory: 24 bytes for each blob to which a document refers, and a descriptor for
//! each blob on the disk that may move.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use content::operation::Result;
use content::{Descriptor, Digest};
use library::{Library, shown};
use manifests::media_types;

/// Minimum size in bytes of a blob that moves. A smaller blob frees little space, and a request for
/// it takes as long and costs as much as one for a larger blob.
pub const SMALLEST: u64 = 16 << 10;

/// A request for a plan.
#[derive(Clone, Debug)]
pub struct MoveRequest {
    /// The current time.
    pub now: SystemTime,
    /// Blobs of models that have not been used for this long.
    pub after: Option<Duration>,
    /// Blobs that only these models have, however recently they were used.
    pub models: HashSet<Digest>,
    /// If the blobs above are fewer bytes than these, the next ones by their last use move as well.
    pub at_least: u64,
    /// Manifests of loaded models, whose blobs stay.
    pub loaded: HashSet<Digest>,
    /// Further blobs that stay.
    pub kept: HashSet<Digest>,
}

impl MoveRequest {
    /// A request for no blobs.
    pub fn at(now: SystemTime) -> Self {
        Self { now, after: None, models: HashSet::new(), at_least: 0, loaded: HashSet::new(), kept: HashSet::new() }
    }
}

/// The blobs to move, the longest unused ones first.
#[derive(Clone, Debug, Default)]
pub struct MovePlan {
    /// The blobs.
    pub blobs: Vec<Descriptor>,
    /// Models with these blobs, each with the bytes of its own.
    pub models: Vec<MovedModel>,
}

/// A model of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedModel {
    /// Name of the model, as users write it.
    pub name: String,
    /// When it was last used; `None` for an earlier version of a model.
    pub used: Option<SystemTime>,
    /// Bytes of the blobs that move, including blobs that other models of the plan have.
    pub bytes: u64,
}

impl MovePlan {
    /// Bytes of all blobs of the plan.
    pub fn bytes(&self) -> u64 {
        self.blobs.iter().map(|blob| blob.size).sum()
    }
}

/// A document from which blobs are reached.
struct Root {
    name: String,
    digest: Digest,
    used: LastUse,
    /// The time of the last use, for reports.
    time: Option<SystemTime>,
}

/// The last use of a model or a blob; a later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LastUse {
    /// The request names the model.
    Chosen,
    At(SystemTime),
    /// The blob stays on the disk.
    Stays,
}

/// Finds the blobs to move.
///
/// # Errors
/// The store cannot be read.
pub fn plan_move(library: &Library, request: &MoveRequest) -> Result<MovePlan> {
    let roots = roots(library, request)?;
    let mut uses: HashMap<u64, LastUse> = HashMap::new();
    for root in &roots {
        // Blobs of a document that cannot be read are in no plan.
        for need in library.needs(&root.digest).unwrap_or_default() {
            let used = if may_move(&need.descriptor) { root.used } else { LastUse::Stays };
            let latest = uses.entry(need.descriptor.digest.fingerprint()).or_insert(used);
            *latest = used.max(*latest);
        }
    }
    let mut candidates = candidates(library, &roots, &uses, &request.kept)?;
    let limit = request.after.and_then(|after| request.now.checked_sub(after));
    let is_due = |used: LastUse| match used {
        LastUse::Chosen => true,
        LastUse::At(time) => limit.is_some_and(|limit| time <= limit),
        LastUse::Stays => false,
    };
    candidates.sort_by_key(|(used, blob)| (*used, blob.digest));
    let mut bytes = 0;
    let mut plan = MovePlan::default();
    for (used, blob) in candidates {
        if is_due(used) || bytes < request.at_least {
            bytes += blob.size;
            plan.blobs.push(blob);
        }
    }
    plan.models = models(library, &roots, &plan.blobs);
    Ok(plan)
}

/// Whether a blob may be in the tier: tensors may. Documents and files that are stored whole, whose
/// headers describe a model, may not.
fn may_move(blob: &Descriptor) -> bool {
    blob.size >= SMALLEST && blob.media_type == media_types::TENSOR
}

/// All documents that something names, with their last use.
fn roots(library: &Library, request: &MoveRequest) -> Result<Vec<Root>> {
    let used = |digest: &Digest, used: SystemTime, is_pinned: bool| {
        if is_pinned || request.loaded.contains(digest) {
            LastUse::Stays
        } else if request.models.contains(digest) {
            LastUse::Chosen
        } else {
            LastUse::At(used)
        }
    };
    let written = |name: &str| shown(name).unwrap_or_else(|_| name.to_owned());
    let mut roots = Vec::new();
    for tag in library.names().list() {
        let is_pinned = library.names().is_pinned(&tag.name)?;
        let time = library.last_used(&tag)?;
        let used = used(&tag.digest, time, is_pinned);
        roots.push(Root { name: written(&tag.name), digest: tag.digest, used, time: Some(time) });
    }
    for (name, versions) in library.names().all_kept_versions() {
        for digest in versions {
            // Without a use of its own, an earlier version counts as unused.
            let time = library.notes().last_use(&digest)?;
            let used = used(&digest, time.unwrap_or(SystemTime::UNIX_EPOCH), false);
            let name = format!("{} (version {})", written(&name), digest.short());
            roots.push(Root { name, digest, used, time });
        }
    }
    for linked in library.linked()? {
        let used = used(&linked.digest, linked.used, false);
        roots.push(Root { name: linked.name, digest: linked.digest, used, time: Some(linked.used) });
    }
    Ok(roots)
}

/// The blobs on the disk that may move, each once, with their last use.
fn candidates(
    library: &Library,
    roots: &[Root],
    uses: &HashMap<u64, LastUse>,
    kept: &HashSet<Digest>,
) -> Result<Vec<(LastUse, Descriptor)>> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for root in roots.iter().filter(|root| root.used != LastUse::Stays) {
        for need in library.needs(&root.digest).unwrap_or_default() {
            let blob = need.descriptor;
            let used = uses.get(&blob.digest.fingerprint()).copied().unwrap_or(LastUse::Stays);
            if used == LastUse::Stays || kept.contains(&blob.digest) || !seen.insert(blob.digest.fingerprint()) {
                continue;
            }
            // A blob of another size is damaged.
            if library.blobs().size_on_disk(&blob.digest)? == Some(blob.size) {
                found.push((since_recall(library, &blob.digest, used), blob));
            }
        }
    }
    Ok(found)
}

/// The last use of a blob, of which a copy back from the tier is one.
fn since_recall(library: &Library, blob: &Digest, used: LastUse) -> LastUse {
    match (used, library.blobs().last_recall(blob)) {
        (LastUse::At(time), Some(recalled)) => LastUse::At(time.max(recalled)),
        (used, _) => used,
    }
}

/// The models with blobs of the plan.
fn models(library: &Library, roots: &[Root], blobs: &[Descriptor]) -> Vec<MovedModel> {
    let moved: HashSet<Digest> = blobs.iter().map(|blob| blob.digest).collect();
    if moved.is_empty() {
        return Vec::new();
    }
    let mut models = Vec::new();
    for root in roots {
        let needs = library.needs(&root.digest).unwrap_or_default();
        let own = needs.iter().filter(|need| moved.contains(&need.descriptor.digest));
        let bytes = own.map(|need| need.descriptor.size).sum();
        if bytes > 0 {
            models.push(MovedModel { name: root.name.clone(), used: root.time, bytes });
        }
    }
    models
}
