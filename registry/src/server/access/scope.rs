//! Scopes: the permissions that a client requests for a token, and that the token grants.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Mode, Rule};
use crate::RepositoryName;

/// Maximum number of repositories in one token. A mount needs two.
const MAX_REPOSITORIES: usize = 16;

/// Actions by repository. There are no wildcards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grants(BTreeMap<RepositoryName, BTreeSet<Action>>);

impl Grants {
    /// Parses scopes like `repository:NAME:pull,push`. Unknown scopes grant nothing and are
    /// ignored: clients also request kinds of scopes that only other registries have.
    pub(super) fn parse<'a>(scopes: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut grants = Self::default();
        for scope in scopes.into_iter().flat_map(str::split_ascii_whitespace) {
            let mut parts = scope.split(':');
            let (Some("repository"), Some(name), Some(actions), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if let Ok(name) = RepositoryName::parse(name) {
                grants.add(name, actions.split(',').filter_map(Action::parse))?;
            }
        }
        Ok(grants)
    }

    /// Adds permissions.
    pub(super) fn add(
        &mut self,
        repository: RepositoryName,
        actions: impl IntoIterator<Item = Action>,
    ) -> Result<(), String> {
        self.0.entry(repository).or_default().extend(actions);
        if self.0.len() > MAX_REPOSITORIES {
            return Err(format!("a token is for {MAX_REPOSITORIES} repositories at most; ask for several tokens"));
        }
        Ok(())
    }

    /// Keeps the permissions that the mode allows. `known` is true for a user.
    pub(super) fn allowed(self, mode: Mode, known: bool) -> Self {
        self.only(|_, action| match mode.rule(action) {
            Rule::Anyone => true,
            Rule::User => known,
            Rule::Nobody => false,
        })
    }

    /// Keeps the permissions that `may` allows.
    pub(super) fn only(mut self, may: impl Fn(&RepositoryName, Action) -> bool) -> Self {
        for (name, actions) in &mut self.0 {
            actions.retain(|action| may(name, *action));
        }
        self.0.retain(|_, actions| !actions.is_empty());
        self
    }

    /// Whether an action is granted.
    pub(super) fn contains(&self, repository: &RepositoryName, action: Action) -> bool {
        self.0.get(repository).is_some_and(|actions| actions.contains(&action))
    }

    /// All permissions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RepositoryName, &BTreeSet<Action>)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(scopes: &[&str]) -> String {
        let grants = Grants::parse(scopes.iter().copied()).expect("few enough");
        let one = |(name, actions): (&RepositoryName, &BTreeSet<Action>)| {
            format!("{name}:{}", actions.iter().map(|action| action.as_str()).collect::<Vec<_>>().join(","))
        };
        grants.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn access_parses_scopes() {
        for (scopes, expect) in [
            (&["repository:a/b:pull"][..], "a/b:pull"),
            (&["repository:a:push,pull,pull"], "a:pull,push"),
            (&["repository:a:pull repository:b:delete", "repository:a:push"], "a:pull,push b:delete"),
            (&["repository:a:*"], "a:"),
            (&["repository:*:pull", "repository:a/../b:pull", "registry:catalog:*", "", "repository:a", "x"], ""),
            (&["repository(plugin):a:pull", "repository:host:5000/a:pull", "REPOSITORY:a:pull"], ""),
        ] {
            assert_eq!(shown(scopes), expect, "{scopes:?}");
        }
        let many: Vec<String> = (0..=MAX_REPOSITORIES).map(|n| format!("repository:r{n}:pull")).collect();
        assert!(Grants::parse(many.iter().map(String::as_str)).is_err());
    }
}
