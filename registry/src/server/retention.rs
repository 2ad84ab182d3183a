//! Retention: tags and manifests that no rule keeps are removed from their repositories.
//!
//! The plan of a repository is made from its content, and then executed or reported. Blobs stay
//! until the next collection of the storage. A tag that was set again, or a manifest that was
//! pushed again since the content was read, is kept. Manifests are planned again after the tags
//! were removed, from what is left.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use content::{Digest, Error};
use futures_util::{StreamExt, TryStreamExt};
use manifests::Document;

use super::journal::{Journal, JournalEntry};
use super::rules::{KeptTags, RepositoryRule, RepositoryRules, Retention, any};
use super::storage::{ListedManifest, ListedTag, Page, Pulls, Reference, Removal, Repository, Storage};
use crate::RepositoryName;

/// Number of repositories that are listed at a time.
const NAMES: usize = 1000;
/// Number of manifests that are read at a time.
const READS: usize = 16;

/// The tags and manifests that are removed from a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPlan {
    /// Tags that are removed.
    pub tags: Vec<ListedTag>,
    /// Manifests without a tag that are removed, after the tags.
    pub manifests: Vec<ListedManifest>,
    /// Number of tags that are kept.
    pub kept_tags: usize,
}

impl RetentionPlan {
    /// Whether nothing is removed.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.manifests.is_empty()
    }
}

/// Decides which tags and manifests are removed from a repository.
///
/// # Errors
/// The storage cannot be read, or has a manifest that cannot be parsed: the manifests to which it
/// refers are unknown.
async fn plan<S: Storage>(
    storage: &S,
    repository: &Repository,
    rule: &RepositoryRule,
    retention: &Retention,
    now: SystemTime,
) -> Result<RetentionPlan, Error> {
    let pulls = if rule.counts_pulls() { Some(storage.pulls(repository, now).await?) } else { None };
    let (kept, tags) = divide(&storage.listed_tags(repository).await?, rule, retention, pulls.as_ref(), now);
    let manifests = untagged(storage, repository, &kept, retention, now).await?;
    Ok(RetentionPlan { tags, manifests, kept_tags: kept.len() })
}

/// Removes the tags of a plan, and then the manifests that are untagged by then. Returns the number
/// of removed tags and manifests.
///
/// # Errors
/// The storage cannot be read or written. A part of the plan may have been executed.
async fn apply<S: Storage>(
    storage: &S,
    repository: &Repository,
    plan: &RetentionPlan,
    retention: &Retention,
    journal: &dyn Journal,
    now: SystemTime,
) -> Result<(usize, usize), Error> {
    let (mut tags, mut manifests) = (0, 0);
    for tag in &plan.tags {
        if storage.remove_tag(repository, tag).await? == Removal::Done {
            tags += 1;
            let reference = Reference::Tag(tag.name.clone());
            journal.record(&JournalEntry::removal(&repository.name, &reference, tag.digest));
        }
    }
    if retention.untagged.is_some() {
        // Tags may have been set meanwhile, and some could not be removed.
        let left = storage.listed_tags(repository).await?;
        for manifest in untagged(storage, repository, &left, retention, now).await? {
            if storage.remove_untagged(repository, &manifest).await? == Removal::Done {
                manifests += 1;
                let reference = Reference::Digest(manifest.digest);
                journal.record(&JournalEntry::removal(&repository.name, &reference, manifest.digest));
            }
        }
    }
    Ok((tags, manifests))
}

/// The retention of a repository.
#[derive(Debug)]
pub struct RepositoryRetention {
    /// The repository.
    pub repository: RepositoryName,
    /// The tags and manifests that its rule removes.
    pub plan: RetentionPlan,
    /// Number of removed tags and manifests; `None` if the plan was not executed.
    pub removed: Option<(usize, usize)>,
}

/// The retention of all repositories.
#[derive(Debug, Default)]
pub struct Retained {
    /// The repositories that lose tags or manifests.
    pub repositories: Vec<RepositoryRetention>,
    /// The repositories whose plan could not be made or executed, with the reasons.
    pub failed: Vec<(RepositoryName, Error)>,
}

/// Whether plans are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Tags and manifests are removed.
    Remove,
    /// Plans are only reported.
    Report,
}

/// Plans the retention of all repositories with a rule, and executes it. A failure in one
/// repository does not stop the others.
///
/// # Errors
/// The repositories cannot be listed.
pub async fn retain<S: Storage>(
    storage: &S,
    rules: &RepositoryRules,
    journal: &dyn Journal,
    execution: Execution,
    now: SystemTime,
) -> Result<Retained, Error> {
    let (mut retained, mut page) = (Retained::default(), Page { after: None, most: NAMES });
    loop {
        let names = storage.repositories(&page).await?;
        for name in names.entries.iter().filter_map(|name| RepositoryName::parse(name).ok()) {
            match retain_one(storage, rules, journal, &name, execution, now).await {
                Ok(done) => retained.repositories.extend(done),
                Err(error) => retained.failed.push((name, error)),
            }
        }
        match names.entries.last().filter(|_| names.has_more) {
            Some(last) => page.after = Some(last.clone()),
            None => return Ok(retained),
        }
    }
}

/// `None` if the repository loses nothing.
async fn retain_one<S: Storage>(
    storage: &S,
    rules: &RepositoryRules,
    journal: &dyn Journal,
    name: &RepositoryName,
    execution: Execution,
    now: SystemTime,
) -> Result<Option<RepositoryRetention>, Error> {
    let Some(rule) = rules.of(name) else { return Ok(None) };
    let Some(retention) = &rule.retention else { return Ok(None) };
    let repository = Repository { name: name.clone(), namespace: None, mirrored: true };
    let plan = plan(storage, &repository, rule, retention, now).await?;
    if plan.is_empty() {
        return Ok(None);
    }
    let removed = match execution {
        Execution::Remove => Some(apply(storage, &repository, &plan, retention, journal, now).await?),
        Execution::Report => None,
    };
    Ok(Some(RepositoryRetention { repository: name.clone(), plan, removed }))
}

/// Divides tags into kept and removed ones.
fn divide(
    tags: &[ListedTag],
    rule: &RepositoryRule,
    retention: &Retention,
    pulls: Option<&Pulls>,
    now: SystemTime,
) -> (Vec<ListedTag>, Vec<ListedTag>) {
    if retention.keep.is_empty() {
        return (tags.to_vec(), Vec::new());
    }
    let mut kept: HashSet<&str> = HashSet::new();
    for keep in &retention.keep {
        kept.extend(kept_by(keep, tags, pulls, now));
    }
    let stays = |tag: &ListedTag| tag.is_pinned || kept.contains(tag.name.as_str()) || rule.is_immutable(&tag.name);
    tags.iter().cloned().partition(stays)
}

/// The tags that one entry of a rule keeps.
fn kept_by<'a>(keep: &KeptTags, tags: &'a [ListedTag], pulls: Option<&Pulls>, now: SystemTime) -> Vec<&'a str> {
    let mut matching: Vec<&ListedTag> = tags.iter().filter(|tag| any(&keep.tags, &tag.name)).collect();
    // The newest first; the name decides between equal times.
    matching.sort_by(|a, b| b.set.cmp(&a.set).then_with(|| b.name.cmp(&a.name)));
    let keeps_all = keep.last.is_none() && keep.pushed_within.is_none() && keep.pulled_within.is_none();
    // A time in the future is now.
    let age = |time: SystemTime| now.duration_since(time).unwrap_or(Duration::ZERO);
    let is_kept = |(place, tag): &(usize, &ListedTag)| {
        let pulled = pulls.map_or(tag.set, |pulls| pulls.of(&tag.digest).max(tag.set));
        keeps_all
            || keep.last.is_some_and(|last| *place < last)
            || keep.pushed_within.is_some_and(|within| age(tag.set) < within)
            || keep.pulled_within.is_some_and(|within| age(pulled) < within)
    };
    matching.into_iter().enumerate().filter(is_kept).map(|(_, tag)| tag.name.as_str()).collect()
}

/// The references of a manifest.
struct References {
    children: Vec<Digest>,
    subject: Option<Digest>,
}

/// The manifests that no kept tag names, no kept manifest contains, and that are about no kept
/// manifest; all older than the retention allows.
async fn untagged<S: Storage>(
    storage: &S,
    repository: &Repository,
    kept: &[ListedTag],
    retention: &Retention,
    now: SystemTime,
) -> Result<Vec<ListedManifest>, Error> {
    let Some(until) = retention.untagged.and_then(|life| now.checked_sub(life)) else { return Ok(Vec::new()) };
    let manifests = storage.listed_manifests(repository).await?;
    let mut references: HashMap<Digest, References> = HashMap::new();
    let digests: Vec<Digest> = manifests.iter().map(|manifest| manifest.digest).collect();
    let mut reads = futures_util::stream::iter(digests)
        .map(|digest| async move { Ok::<_, Error>((digest, storage.read_manifest(repository, &digest).await?)) })
        .buffer_unordered(READS);
    while let Some((digest, raw)) = reads.try_next().await? {
        // It may have been deleted meanwhile.
        let Some(raw) = raw else { continue };
        let document = Document::parse(&raw).map_err(|e| Error::Other(format!("manifest `{digest}`: {e}").into()))?;
        let subject = document.subject().map(|subject| subject.digest);
        references.insert(digest, References { children: document.children().manifests, subject });
    }
    let young = manifests.iter().filter(|manifest| manifest.pushed > until).map(|manifest| manifest.digest);
    let mut left: Vec<Digest> = kept.iter().map(|tag| tag.digest).chain(young).collect();
    let mut needed: HashSet<Digest> = HashSet::new();
    while !left.is_empty() {
        while let Some(digest) = left.pop() {
            if needed.insert(digest)
                && let Some(references) = references.get(&digest)
            {
                left.extend(&references.children);
            }
        }
        let about = |references: &References| references.subject.is_some_and(|subject| needed.contains(&subject));
        let new = references.iter().filter(|(digest, references)| !needed.contains(*digest) && about(references));
        left.extend(new.map(|(digest, _)| *digest));
    }
    Ok(manifests.into_iter().filter(|manifest| !needed.contains(&manifest.digest)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::NamePattern;

    fn day(number: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(24 * number)
    }

    fn tag(name: &str, set: u64) -> ListedTag {
        ListedTag { name: name.to_owned(), digest: Digest::of(name.as_bytes()), set: day(set), is_pinned: false }
    }

    fn patterns(texts: &[&str]) -> Vec<NamePattern> {
        texts.iter().map(|text| NamePattern::parse(text).expect(text)).collect()
    }

    fn removed(keep: Vec<KeptTags>, immutable: &[&str]) -> Vec<String> {
        removed_with(keep, immutable, None)
    }

    fn removed_with(keep: Vec<KeptTags>, immutable: &[&str], pulls: Option<&Pulls>) -> Vec<String> {
        let tags = [tag("latest", 1), tag("n1", 2), tag("n2", 3), tag("n3", 4), tag("v1", 5), tag("v2", 99)];
        let rule = RepositoryRule { immutable_tags: patterns(immutable), ..RepositoryRule::default() };
        let retention = Retention { keep, untagged: None };
        divide(&tags, &rule, &retention, pulls, day(10)).1.into_iter().map(|tag| tag.name).collect()
    }

    #[test]
    fn tags_are_kept_by_any_entry() {
        let keep = |tags: &[&str]| KeptTags { tags: patterns(tags), ..KeptTags::default() };
        assert!(removed(vec![], &[]).is_empty(), "no entry keeps all");
        assert_eq!(removed(vec![keep(&["latest", "v*"])], &[]), ["n1", "n2", "n3"]);
        let last = KeptTags { last: Some(2), ..keep(&["n*"]) };
        assert_eq!(removed(vec![last.clone()], &[]), ["latest", "n1", "v1", "v2"]);
        assert_eq!(removed(vec![last.clone(), keep(&["latest"])], &["v*"]), ["n1"], "immutable tags are kept");
        let days = |days: u64| Some(Duration::from_hours(24 * days));
        let recent = KeptTags { pushed_within: days(6), ..keep(&["*"]) };
        assert_eq!(removed(vec![recent], &[]), ["latest", "n1", "n2", "n3"]);
        let either = KeptTags { pushed_within: days(6), ..last };
        assert_eq!(removed(vec![either], &[]), ["latest", "n1", "v1", "v2"]);
    }

    #[test]
    fn pulled_tags_are_kept() {
        let days = |days: u64| Some(Duration::from_hours(24 * days));
        let keep = KeptTags { tags: patterns(&["*"]), pulled_within: days(3), ..KeptTags::default() };
        let removed = |since, last| removed_with(vec![keep.clone()], &[], Some(&Pulls { since: day(since), last }));
        let n1 = HashMap::from([(Digest::of(b"n1"), day(8))]);
        // `v2` was set in the future.
        assert_eq!(removed(0, n1.clone()), ["latest", "n2", "n3", "v1"]);
        assert_eq!(removed(9, n1), [""; 0], "pulls before the beginning of the record are unknown");
    }
}
