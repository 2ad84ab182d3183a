//! Rules of repositories: tags that never change, quotas, and how long tags are kept.
//!
//! The first rule whose names match a repository applies to it. A name with one part and the same
//! name below `library/` are the same repository in some storages, so each matches the rules of
//! both.

use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use manifests::reference::DEFAULT_NAMESPACE;

use super::refusal::ErrorReply;
use super::storage::{NewTag, TagChange};
use crate::{ErrorCode, RepositoryName};

/// A pattern of names of repositories or tags: `*` matches any characters within a part, `**` any
/// parts.
///
/// # Examples
///
/// ```
/// use lode_registry::server::NamePattern;
///
/// let pattern = NamePattern::parse("team/*").expect("a pattern");
/// assert!(pattern.matches("team/model") && !pattern.matches("team/a/model"));
/// assert!(NamePattern::parse("team/[").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct NamePattern(GlobMatcher);

impl NamePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The text is not a pattern; the message names it and the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a pattern is empty; `**` matches every name".to_owned());
        }
        let glob = GlobBuilder::new(text).literal_separator(true).build();
        Ok(Self(glob.map_err(|e| format!("`{text}` is not a pattern: {}", e.kind()))?.compile_matcher()))
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        self.0.glob().glob()
    }

    /// The only name that the pattern matches; `None` if it may match several.
    pub fn literal(&self) -> Option<&str> {
        let text = self.as_str();
        (!text.contains(['*', '?', '[', '{', '\\'])).then_some(text)
    }

    /// Whether the pattern matches the whole name.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

/// The rule of some repositories.
#[derive(Clone, Debug, Default)]
pub struct RepositoryRule {
    /// The names of its repositories.
    pub names: Vec<NamePattern>,
    /// Tags that are set once: they are never moved to another manifest and never removed.
    pub immutable_tags: Vec<NamePattern>,
    /// Maximum number of bytes of a repository. A blob counts once for each repository with a
    /// manifest that refers to it. `None`: no limit.
    pub max_bytes: Option<u64>,
    /// The tags and manifests that are kept. `None`: all.
    pub retention: Option<Retention>,
}

/// Which tags and manifests of a repository are kept.
#[derive(Clone, Debug, Default)]
pub struct Retention {
    /// A tag is kept if one of these keeps it. If the list is empty, all tags are kept.
    pub keep: Vec<KeptTags>,
    /// How long a manifest without a tag is kept. `None`: forever.
    pub untagged: Option<Duration>,
}

/// Some tags that are kept. With `tags` alone, all matching tags are kept.
#[derive(Clone, Debug, Default)]
pub struct KeptTags {
    /// The tags that this is about.
    pub tags: Vec<NamePattern>,
    /// Keeps this number of the matching tags that were set last.
    pub last: Option<usize>,
    /// Keeps matching tags that were set within this time.
    pub pushed_within: Option<Duration>,
    /// Keeps matching tags whose manifests clients pulled within this time.
    pub pulled_within: Option<Duration>,
}

impl RepositoryRule {
    /// Whether the retention depends on pulls.
    pub(super) fn counts_pulls(&self) -> bool {
        self.retention.iter().flat_map(|retention| &retention.keep).any(|keep| keep.pulled_within.is_some())
    }

    /// Whether a tag is set only once.
    pub(super) fn is_immutable(&self, tag: &str) -> bool {
        any(&self.immutable_tags, tag)
    }
}

/// All rules of a registry.
#[derive(Clone, Debug, Default)]
pub struct RepositoryRules(Vec<RepositoryRule>);

impl RepositoryRules {
    /// Creates rules. The first one that matches a repository applies.
    pub fn new(rules: Vec<RepositoryRule>) -> Self {
        Self(rules)
    }

    /// The rule of a repository, if one matches.
    pub fn of(&self, repository: &RepositoryName) -> Option<&RepositoryRule> {
        self.0.iter().find(|rule| matches_repository(&rule.names, repository))
    }

    /// Whether some repository may lose tags or manifests.
    pub fn have_retention(&self) -> bool {
        self.0.iter().any(|rule| rule.retention.is_some())
    }

    /// The tags of a push with the change that the rules allow.
    pub fn new_tags(&self, repository: &RepositoryName, tags: Vec<String>) -> Vec<NewTag> {
        let rule = self.of(repository);
        let change = |tag: &str| match rule {
            Some(rule) if rule.is_immutable(tag) => TagChange::Forbidden,
            _ => TagChange::Allowed,
        };
        tags.into_iter().map(|name| NewTag { change: change(&name), name }).collect()
    }
}

/// Whether one of the patterns matches.
pub(super) fn any(patterns: &[NamePattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

/// Whether one of the patterns matches a repository.
pub fn matches_repository(patterns: &[NamePattern], repository: &RepositoryName) -> bool {
    let name = repository.as_str();
    let prefix = format!("{DEFAULT_NAMESPACE}/");
    let other = match name.strip_prefix(&prefix) {
        Some(short) => short.to_owned(),
        None if name.contains('/') => return any(patterns, name),
        None => format!("{prefix}{name}"),
    };
    any(patterns, name) || any(patterns, &other)
}

/// The refusal to change or remove a tag that is set once.
pub(super) fn immutable(repository: impl std::fmt::Display, tag: &str) -> ErrorReply {
    let message = format!("tag `{tag}` of `{repository}` is immutable: a rule of this registry forbids to remove it");
    ErrorReply::with_status(axum::http::StatusCode::CONFLICT, ErrorCode::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(names: &[&str], immutable: &[&str]) -> RepositoryRule {
        let patterns = |texts: &[&str]| texts.iter().map(|text| NamePattern::parse(text).expect(text)).collect();
        RepositoryRule { names: patterns(names), immutable_tags: patterns(immutable), ..RepositoryRule::default() }
    }

    #[test]
    fn the_first_rule_applies() {
        let rules = RepositoryRules::new(vec![
            rule(&["team/free"], &[]),
            rule(&["team/**"], &["v*"]),
            rule(&["library/*"], &["*"]),
        ]);
        for (name, tag, expect) in [
            ("team/free", "v1", TagChange::Allowed),
            ("team/m", "v1", TagChange::Forbidden),
            ("team/a/b/m", "v1", TagChange::Forbidden),
            ("team/m", "latest", TagChange::Allowed),
            ("other/m", "v1", TagChange::Allowed),
            ("m", "v1", TagChange::Forbidden),
            ("library/m", "v1", TagChange::Forbidden),
        ] {
            let name = RepositoryName::parse(name).expect(name);
            let tags = rules.new_tags(&name, vec![tag.to_owned()]);
            assert_eq!(tags, [NewTag { name: tag.to_owned(), change: expect }], "{name}:{tag}");
        }
    }
}
