//! Scopes: the access that a request needs.

/// An action on a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Reads.
    Pull,
    /// Writes, which includes reading.
    Push,
}

/// The access that a token must grant. Requests of the same scope share a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The repository. Empty for requests to the whole registry (`/v2/`), whose challenge names the
    /// scope.
    pub repository: String,
    /// The action on the repository.
    pub actions: Action,
    /// Another repository that a blob is mounted from, which must be readable.
    pub mount_from: Option<String>,
}

impl Scope {
    /// The scopes in the syntax of the token protocol.
    pub(super) fn words(&self) -> Vec<String> {
        let actions = match self.actions {
            Action::Pull => "pull",
            Action::Push => "pull,push",
        };
        let own = (!self.repository.is_empty()).then(|| format!("repository:{}:{actions}", self.repository));
        let from = self.mount_from.as_ref().map(|from| format!("repository:{from}:pull"));
        own.into_iter().chain(from).collect()
    }

    /// [`Scope::words`], and the scopes of a challenge that exceed them: some registries define
    /// their own actions.
    pub(super) fn words_with(&self, challenge: Option<&str>) -> Vec<String> {
        const MOST_WORDS: usize = 8;
        let mut words = self.words();
        for word in challenge.unwrap_or_default().split_whitespace() {
            let sane = word.len() <= 1024 && word.bytes().all(|b| b.is_ascii_graphic());
            if words.len() < MOST_WORDS && sane && !words.iter().any(|ours| covers(ours, word)) {
                words.push(word.to_owned());
            }
        }
        words
    }
}

/// Whether `ours` grants everything that `theirs` does.
fn covers(ours: &str, theirs: &str) -> bool {
    let (Some((resource, actions)), Some((their_resource, their_actions))) =
        (ours.rsplit_once(':'), theirs.rsplit_once(':'))
    else {
        return ours == theirs;
    };
    resource == their_resource && their_actions.split(',').all(|action| actions.split(',').any(|ours| ours == action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_what_is_needed_and_no_less_than_the_registry_wants() {
        let pull = Scope { repository: "a/b".into(), actions: Action::Pull, mount_from: None };
        let push = Scope { actions: Action::Push, mount_from: Some("c".into()), ..pull.clone() };
        let ping = Scope { repository: String::new(), ..pull.clone() };
        assert_eq!(pull.words(), ["repository:a/b:pull"]);
        assert_eq!(
            push.words_with(Some("repository:a/b:pull,push")),
            ["repository:a/b:pull,push", "repository:c:pull"]
        );
        assert_eq!(pull.words_with(Some("repository:a/b:metadata_read,pull")).len(), 2);
        assert_eq!(ping.words_with(Some("registry:catalog:*")), ["registry:catalog:*"]);
        assert!(ping.words_with(None).is_empty());
        assert!(pull.words_with(Some(&"x ".repeat(1000))).len() <= 8);
    }
}
