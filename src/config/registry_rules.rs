//! The file of registry rules, which `LODE_REGISTRY_RULES` names.
//!
//! ```toml
//! [[repository]]                        # the first entry whose names match applies
//! names = ["team/**"]                   # `*` matches within a part of a name, `**` any parts
//! immutable_tags = ["v*"]               # never moved, never removed
//! max_bytes = "500GB"                   # bytes of the blobs of all manifests
//! untagged = "7d"                       # manifests without a tag stay so long after a push
//! [[repository.keep]]                   # a tag is kept if an entry keeps it
//! tags = ["latest", "v*"]
//! [[repository.keep]]
//! tags = ["nightly-*"]
//! last = 10                             # the last ten of them, and
//! pushed_within = "30d"                 # the ones that were pushed within 30 days, and
//! pulled_within = "90d"                 # the ones that clients pulled within 90 days
//!
//! [audit]
//! file = "/var/log/lode/audit.jsonl"
//!
//! [[webhook]]
//! url = "https://ci.example/hooks/models"
//! events = ["push", "delete"]           # also "pull"; the default is push and delete
//! repositories = ["team/**"]            # default: all
//! authorization_file = "/run/secrets/hook"   # the value of the header `Authorization`
//! source = "https://registry.example"   # names this registry; the default is "lode"
//!
//! [[sync]]                              # tags of another registry that are copied here
//! registry = "docker.io"
//! repositories = ["org/chat", "org/m-*"]     # patterns need the registry's catalog
//! tags = ["v*"]                         # default: all
//! into = "mirror"                       # here they are mirror/org/chat; default: the same names
//! every = "6h"
//!
//! [[provider]]                          # tokens of OpenID Connect as logins
//! issuer = "https://token.actions.githubusercontent.com"
//! audience = "registry.example"
//! user = "sub"                          # the claim that names the user; this is the default
//! keys = "https://example.com/keys"     # default: as the issuer's discovery document says
//! [[provider.grant]]
//! claims = { repository = "org/*", ref = "refs/heads/main" }   # all must match; patterns as above
//! repositories = ["team/**"]
//! actions = ["pull", "push"]            # also "delete"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use daemon::RegistryPolicy;
use daemon::webhooks::{EventKind, WebhookSettings};
use manifests::ModelRef;
use registry::RepositoryName;
use registry::server::access::{Action, IdentityProvider, ProviderGrant};
use registry::server::{KeptTags, NamePattern, RepositoryRule, RepositoryRules, Retention};
use serde::Deserialize;
use transfer::SyncSource;

use crate::size::bytes;
use crate::time_span::seconds;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    repository: Vec<RepositoryEntry>,
    audit: Option<AuditEntry>,
    webhook: Vec<WebhookEntry>,
    sync: Vec<SyncEntry>,
    provider: Vec<ProviderEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RepositoryEntry {
    names: Vec<String>,
    #[serde(default)]
    immutable_tags: Vec<String>,
    max_bytes: Option<String>,
    untagged: Option<String>,
    #[serde(default)]
    keep: Vec<KeepEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeepEntry {
    tags: Vec<String>,
    last: Option<usize>,
    pushed_within: Option<String>,
    pulled_within: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditEntry {
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookEntry {
    url: String,
    events: Option<Vec<String>>,
    #[serde(default)]
    repositories: Vec<String>,
    authorization_file: Option<PathBuf>,
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SyncEntry {
    registry: String,
    repositories: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
    into: Option<String>,
    every: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderEntry {
    issuer: String,
    audience: String,
    user: Option<String>,
    keys: Option<String>,
    grant: Vec<GrantEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantEntry {
    claims: BTreeMap<String, String>,
    repositories: Vec<String>,
    actions: Vec<String>,
}

/// Reads the file of rules.
///
/// # Errors
/// The file cannot be read, or an entry is wrong. The message names both.
pub(crate) fn read(path: &Path) -> Result<(RegistryPolicy, Vec<IdentityProvider>)> {
    let problem = || format!("the registry rules in `{}` cannot be used", path.display());
    let text = std::fs::read_to_string(path).with_context(problem)?;
    parse(&text).with_context(problem)
}

fn parse(text: &str) -> Result<(RegistryPolicy, Vec<IdentityProvider>)> {
    let file: File = toml::from_str(text)?;
    let rules = file.repository.into_iter().map(rule).collect::<Result<Vec<_>>>()?;
    let policy = RegistryPolicy {
        rules: Arc::new(RepositoryRules::new(rules)),
        audit_log: file.audit.map(|audit| audit.file),
        webhooks: file.webhook.into_iter().map(webhook).collect::<Result<_>>()?,
        sync: file.sync.into_iter().map(sync).collect::<Result<_>>()?,
    };
    Ok((policy, file.provider.into_iter().map(provider).collect::<Result<_>>()?))
}

fn patterns(texts: &[String]) -> Result<Vec<NamePattern>> {
    texts.iter().map(|text| NamePattern::parse(text).map_err(|reason| anyhow!(reason))).collect()
}

fn span(field: &str, text: Option<&String>) -> Result<Option<Duration>> {
    let parse = |text: &String| seconds(text).map(Duration::from_secs).map_err(|reason| anyhow!("`{field}`: {reason}"));
    text.map(parse).transpose()
}

fn rule(entry: RepositoryEntry) -> Result<RepositoryRule> {
    ensure!(!entry.names.is_empty(), "`names` of a repository is empty; `[\"**\"]` matches all repositories");
    let keep = entry.keep.iter().map(kept).collect::<Result<Vec<_>>>()?;
    let untagged = span("untagged", entry.untagged.as_ref())?;
    let has_retention = untagged.is_some() || !keep.is_empty();
    let max_bytes = entry.max_bytes.map(|text| bytes(&text).map_err(|reason| anyhow!("`max_bytes`: {reason}")));
    Ok(RepositoryRule {
        names: patterns(&entry.names)?,
        immutable_tags: patterns(&entry.immutable_tags)?,
        max_bytes: max_bytes.transpose()?,
        retention: has_retention.then_some(Retention { keep, untagged }),
    })
}

fn kept(entry: &KeepEntry) -> Result<KeptTags> {
    let pushed_within = span("pushed_within", entry.pushed_within.as_ref())?;
    let pulled_within = span("pulled_within", entry.pulled_within.as_ref())?;
    ensure!(!entry.tags.is_empty(), "`tags` of an entry `keep` is empty; `[\"*\"]` matches all tags");
    Ok(KeptTags { tags: patterns(&entry.tags)?, last: entry.last, pushed_within, pulled_within })
}

fn webhook(entry: WebhookEntry) -> Result<WebhookSettings> {
    let url: reqwest::Url = entry.url.parse().with_context(|| format!("`{}` is not a URL", entry.url))?;
    if !matches!(url.scheme(), "http" | "https") {
        bail!("the URL of a webhook begins with `{}:`; expected `https://` or `http://`", url.scheme());
    }
    let names = entry.events.unwrap_or_else(|| vec!["push".to_owned(), "delete".to_owned()]);
    let kind = |name: &String| {
        EventKind::parse(name).with_context(|| format!("`{name}` is no event; expected `push`, `pull` or `delete`"))
    };
    Ok(WebhookSettings {
        url,
        events: names.iter().map(kind).collect::<Result<_>>()?,
        repositories: patterns(&entry.repositories)?,
        authorization_file: entry.authorization_file,
        source: entry.source.unwrap_or_else(|| "lode".to_owned()),
    })
}

fn sync(entry: SyncEntry) -> Result<SyncSource> {
    let problem = || format!("the sync of `{}`", entry.registry);
    ensure!(!entry.repositories.is_empty(), "{} names no repositories; `[\"**\"]` matches all", problem());
    let is_host = format!("{}/a", entry.registry).parse::<ModelRef>().is_ok_and(|name| name.host() == entry.registry);
    ensure!(is_host, "{}: expected a host, such as registry.example:5000", problem());
    let every = span("every", Some(&entry.every)).with_context(problem)?.unwrap_or_default();
    ensure!(every >= Duration::from_secs(1), "{}: `every` is less than a second", problem());
    if let Some(prefix) = &entry.into {
        RepositoryName::parse(prefix).map_err(|reason| anyhow!(reason)).with_context(problem)?;
    }
    Ok(SyncSource {
        repositories: patterns(&entry.repositories)?,
        tags: patterns(&entry.tags)?,
        into: entry.into,
        every,
        registry: entry.registry,
    })
}

fn provider(entry: ProviderEntry) -> Result<IdentityProvider> {
    let problem = format!("the provider `{}`", entry.issuer);
    ensure!(!entry.grant.is_empty(), "{problem} has no `[[provider.grant]]`, so its tokens could do nothing");
    let keys = entry.keys.map(|url| url.parse().with_context(|| format!("{problem}: `{url}` is not a URL")));
    Ok(IdentityProvider {
        issuer: entry.issuer,
        audience: entry.audience,
        keys_url: keys.transpose()?,
        user_claim: entry.user.unwrap_or_else(|| "sub".to_owned()),
        grants: entry.grant.into_iter().map(grant).collect::<Result<_>>().context(problem)?,
    })
}

fn grant(entry: GrantEntry) -> Result<ProviderGrant> {
    ensure!(!entry.claims.is_empty(), "`claims` of a grant is empty, so every token of the issuer would have it");
    ensure!(!entry.repositories.is_empty(), "`repositories` of a grant is empty; `[\"**\"]` matches all");
    let claim = |(name, text): (String, String)| {
        NamePattern::parse(&text).map(|pattern| (name, pattern)).map_err(|reason| anyhow!(reason))
    };
    let action = |name: &String| {
        Action::parse(name).with_context(|| format!("`{name}` is no action; expected `pull`, `push` or `delete`"))
    };
    Ok(ProviderGrant {
        claims: entry.claims.into_iter().map(claim).collect::<Result<_>>()?,
        repositories: patterns(&entry.repositories)?,
        actions: entry.actions.iter().map(action).collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rules() {
        let example = include_str!("registry_rules.rs").lines().take_while(|line| line.starts_with("//!"));
        let example: Vec<&str> = example.map(|line| line.trim_start_matches("//!").trim()).collect();
        let example = example.join("\n");
        let text = example.split("```").nth(1).and_then(|text| text.strip_prefix("toml")).expect("the example");
        let (policy, providers) = parse(text).expect("the example of the documentation");
        let name = RepositoryName::parse("team/a/b").expect("a name");
        let rule = policy.rules.of(&name).expect("a rule");
        assert_eq!(rule.max_bytes, Some(500_000_000_000));
        let retention = rule.retention.as_ref().expect("a retention");
        assert_eq!(retention.untagged, Some(Duration::from_hours(7 * 24)));
        assert_eq!(retention.keep.len(), 2);
        assert_eq!(providers[0].grants[0].actions, [Action::Pull, Action::Push]);
        assert_eq!(policy.webhooks[0].events, [EventKind::Push, EventKind::Delete]);
    }

    #[test]
    fn refuses_wrong_rules() {
        for (text, expect) in [
            ("[[repository]]\nnames = []", "`names`"),
            ("[[repository]]\nnames = [\"a/[\"]", "not a pattern"),
            ("[[repository]]\nnames = [\"**\"]\nmax_bytes = \"5 apples\"", "`max_bytes`"),
            ("[[repository]]\nnames = [\"**\"]\nuntagged = \"7 days\"", "`untagged`"),
            ("[[repository]]\nnames = [\"**\"]\nimmutable = [\"v*\"]", "unknown field `immutable`"),
            ("[[repository]]\nnames = [\"**\"]\n[[repository.keep]]\ntags = []", "`tags`"),
            ("[[webhook]]\nurl = \"example\"", "not a URL"),
            ("[[webhook]]\nurl = \"file:///etc\"", "begins with `file:`"),
            ("[[webhook]]\nurl = \"http://a\"\nevents = [\"pushed\"]", "no event"),
            ("[[sync]]\nregistry = \"r.example\"\nrepositories = []\nevery = \"6h\"", "names no repositories"),
            ("[[sync]]\nregistry = \"a/b\"\nrepositories = [\"x\"]\nevery = \"6h\"", "expected a host"),
            ("[[sync]]\nregistry = \"r.example\"\nrepositories = [\"x\"]\nevery = \"0s\"", "`every`"),
            ("[audit]", "missing field `file`"),
            ("[[provider]]\nissuer = \"i\"\naudience = \"a\"\ngrant = []", "no `[[provider.grant]]`"),
            (
                "[[provider]]\nissuer = \"i\"\naudience = \"a\"\n[[provider.grant]]\nclaims = {}\nrepositories = []\nactions = []",
                "`claims` of a grant is empty",
            ),
        ] {
            let error = format!("{:#}", parse(text).expect_err(text));
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
