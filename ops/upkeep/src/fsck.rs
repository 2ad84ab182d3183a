//! Checks a store for damage: names, documents, and the bytes of blobs. The check does not change
//! the store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use content::operation::Result;
use content::{Digest, Observer};
use library::{Library, shown};
use store::Verified;

use crate::problem::Problem;
use crate::verify::{complaint, missing, verify_all};

/// Selection of the blobs to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All blobs.
    All,
    /// This number of blobs, starting with the ones that were verified longest ago.
    Count(u64),
    /// This percentage of the blobs, selected in the same way.
    Percent(u64),
    /// Blobs that were not verified within this duration.
    NotWithin(Duration),
    /// The given blobs.
    Blobs(HashSet<Digest>),
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckReport {
    /// Number of model names.
    pub models: u64,
    /// Number of blobs that were read.
    pub blobs: u64,
    /// Bytes of these blobs.
    pub bytes: u64,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

/// The models that need a blob.
struct Users {
    /// Size as the first model's descriptor states it.
    size: u64,
    layer: String,
    models: Vec<String>,
    /// Whether the blob must be present. Untagged manifests, which clients pushed or a pull-through
    /// cache stored, can be incomplete.
    is_required: bool,
}

/// Checks the store. Names, manifests and the presence of blobs are always checked; `selection`
/// determines which blobs are read.
///
/// # Errors
/// The store cannot be read at all, or the caller has canceled.
pub fn fsck(library: &Library, selection: Selection, now: SystemTime, observer: &dyn Observer) -> Result<FsckReport> {
    let mut report = FsckReport::default();
    observer.status("checking names and manifests".to_owned());
    for error in library.names().damaged(now) {
        report.problems.push(Problem { digest: None, layer: None, models: Vec::new(), error: error.to_string() });
    }
    let (users, mut unreadable) = users(library);
    if !unreadable.is_empty() {
        // A model can be removed while it is checked, so only repeated errors count.
        let again = self::users(library).1;
        unreadable.retain(|problem| again.contains(problem));
    }
    report.models = library.names().list().len() as u64;
    let mut damaged: BTreeMap<Digest, String> = BTreeMap::new();
    for (digest, user) in &users {
        let size = match library.blobs().size(digest) {
            Err(store::Error::Damaged { path, reason }) => {
                damaged.insert(*digest, format!("`{}` is damaged: {reason}", path.display()));
                continue;
            }
            other => other?,
        };
        match size {
            Some(size) if size == user.size => {}
            Some(size) => {
                damaged.insert(*digest, format!("it has {size} bytes, its descriptor says {}", user.size));
            }
            None if user.is_required => {
                damaged.insert(*digest, missing(library, digest));
            }
            None => {}
        }
    }
    let mut blobs: BTreeMap<Digest, u64> = library.blobs().list().into_iter().collect();
    blobs.extend(users.iter().filter(|(_, user)| user.is_required).map(|(digest, user)| (*digest, user.size)));
    blobs.retain(|digest, _| !damaged.contains_key(digest));
    if !matches!(selection, Selection::Blobs(_)) {
        // Roots are checked where they are written.
        blobs.retain(|digest, _| !library.blobs().is_only_in_root(digest));
    }
    if !matches!(selection, Selection::All | Selection::Blobs(_)) {
        // The tier is not read, so a sample would never get beyond its blobs.
        let is_in_tier = |digest: &Digest| {
            matches!(library.blobs().size_on_disk(digest), Ok(None))
                && matches!(library.blobs().size_in_files(digest), Ok(None))
        };
        blobs.retain(|digest, _| !is_in_tier(digest));
    }
    let chosen = select(library, blobs.into_iter().collect(), selection, now);
    observer.status(format!("reading {} blobs", chosen.len()));
    for ((digest, outcome), (_, size)) in verify_all(library, &chosen, observer)?.into_iter().zip(&chosen) {
        if !matches!(outcome, Ok(Verified::InTier)) {
            report.blobs += 1;
            report.bytes += size;
        }
        damaged.extend(complaint(library, &digest, &outcome, *size).map(|error| (digest, error)));
    }
    report.problems.extend(unreadable);
    report.problems.extend(still_there(library, &users, damaged)?);
    Ok(report)
}

/// Returns all needed blobs with the models that need them, and the manifests that cannot be read.
fn users(library: &Library) -> (HashMap<Digest, Users>, Vec<Problem>) {
    let mut roots = Vec::new();
    // A tag that is not a valid model name is reported unchanged.
    let written = |name: String| shown(&name).unwrap_or(name);
    for tag in library.names().list() {
        roots.push((written(tag.name), tag.digest));
    }
    for (name, versions) in library.names().all_kept_versions() {
        let name = written(name);
        roots.extend(versions.into_iter().map(|digest| (format!("{name} (version {})", digest.short()), digest)));
    }
    let named: HashSet<Digest> = roots.iter().map(|(_, digest)| *digest).collect();
    for digest in library.notes().documents().into_iter().filter(|digest| !named.contains(digest)) {
        roots.push((format!("manifest {} without a tag", digest.short()), digest));
    }
    let (mut users, mut unreadable): (HashMap<Digest, Users>, _) = (HashMap::new(), Vec::new());
    for (model, root) in roots {
        // The blobs of this document were found with the document that contains it. Without this
        // check, nested indexes would be walked once per level.
        if !named.contains(&root) && users.contains_key(&root) {
            continue;
        }
        match library.needs(&root) {
            Ok(needs) => {
                for need in needs {
                    let descriptor = need.descriptor;
                    let new =
                        || Users { size: descriptor.size, layer: need.layer, models: Vec::new(), is_required: false };
                    let user = users.entry(descriptor.digest).or_insert_with(new);
                    user.models.push(model.clone());
                    user.is_required |= named.contains(&root);
                }
            }
            Err(error) => unreadable.push(Problem {
                digest: Some(root),
                layer: Some("manifest".to_owned()),
                error: format!("manifest `{root}` of model '{model}' cannot be read: {error:#}"),
                models: vec![model],
            }),
        }
    }
    (users, unreadable)
}

fn select(
    library: &Library,
    mut blobs: Vec<(Digest, u64)>,
    selection: Selection,
    now: SystemTime,
) -> Vec<(Digest, u64)> {
    let count = match selection {
        Selection::All => return blobs,
        Selection::Blobs(wanted) => {
            blobs.retain(|(digest, _)| wanted.contains(digest));
            return blobs;
        }
        Selection::Count(count) => count,
        Selection::Percent(percent) => (blobs.len() as u64 * percent.min(100)).div_ceil(100),
        Selection::NotWithin(time) => {
            let mut old = Vec::new();
            for (digest, size) in blobs {
                let checked = library.blobs().last_verified(&digest);
                if checked.is_none_or(|checked| now.duration_since(checked).is_ok_and(|age| age >= time)) {
                    old.push((digest, size));
                }
            }
            return old;
        }
    };
    // Repeated checks with a sample cover the whole store in time.
    let mut checked: HashMap<Digest, Option<SystemTime>> = HashMap::new();
    for (digest, _) in &blobs {
        checked.insert(*digest, library.blobs().last_verified(digest));
    }
    blobs.sort_by_key(|(digest, _)| (checked.get(digest).copied().flatten(), *digest));
    blobs.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    blobs
}

/// Returns the problems with blobs. Blobs of models that were removed in the meantime are not
/// problems.
fn still_there(
    library: &Library,
    before: &HashMap<Digest, Users>,
    damaged: BTreeMap<Digest, String>,
) -> Result<Vec<Problem>> {
    if damaged.is_empty() {
        return Ok(Vec::new());
    }
    // A damaged manifest no longer lists its blobs; then the earlier result is used.
    let (now, unreadable) = users(library);
    let users = if unreadable.is_empty() { &now } else { before };
    let mut problems = Vec::new();
    for (digest, error) in damaged {
        let user = users.get(&digest);
        if user.is_none() && library.blobs().size(&digest)?.is_none() {
            continue;
        }
        // A missing blob can have been added since, by a new model.
        let again = library.blobs().verify(&digest, user.map(|user| user.size), &mut |_| true);
        if matches!(again, Ok(Verified::Good | Verified::InTier)) {
            continue;
        }
        let text = match user {
            Some(user) => {
                let (models, layer) = (user.models.join("', '"), &user.layer);
                format!("blob `{digest}` of model '{models}', layer `{layer}`: {error}")
            }
            None => format!("blob `{digest}`, which no model needs: {error}"),
        };
        problems.push(Problem {
            digest: Some(digest),
            layer: user.map(|user| user.layer.clone()),
            models: user.map(|user| user.models.clone()).unwrap_or_default(),
            error: text,
        });
    }
    Ok(problems)
}
