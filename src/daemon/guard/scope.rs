//! What a request needs the right to.

use std::str::FromStr;

use axum::http::Method;

use crate::daemon::error::of_registry;

/// What an API key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Look at models, and read them out.
    Read,
    /// Let models compute.
    Run,
    /// Add, change and remove models.
    Write,
    /// Look after the store.
    Admin,
}

impl Scope {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Read, Self::Run, Self::Write, Self::Admin];

    /// As files of keys have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// Whether it is about more than looking and computing.
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Admin)
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| format!("`{text}` is not a scope; there are read, run, write and admin"))
    }
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Everybody may.
    Nothing,
    /// A key with this scope, where there are keys.
    Scope(Scope),
    /// The same of the registry, where it has no users of its own.
    Registry(Scope),
}

/// Calls that only look, though they are posts.
const LOOKS: [&str; 8] = [
    "/api/show",
    "/api/save",
    "/api/export",
    "/api/tokenize",
    "/api/detokenize",
    "/api/lode/history",
    "/api/lode/diff",
    "/api/lode/plan",
];
/// Calls that let a model compute.
const RUNS: [&str; 5] = ["/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/lode/perplexity"];
/// Calls that add, change or remove models.
const WRITES: [&str; 9] = [
    "/api/create",
    "/api/pull",
    "/api/push",
    "/api/copy",
    "/api/delete",
    "/api/load",
    "/api/lode/rollback",
    "/api/lode/pin",
    "/api/lode/unpin",
];

/// What a request needs. Whatever is not listed needs the most.
pub(super) fn of(method: &Method, path: &str) -> Need {
    let looks = matches!(*method, Method::GET | Method::HEAD);
    if *method == Method::OPTIONS || matches!(path, "/" | "/healthz" | "/readyz" | "/api/version" | "/openapi.json") {
        return Need::Nothing;
    }
    if of_registry(path) {
        return Need::Registry(if looks { Scope::Read } else { Scope::Write });
    }
    Need::Scope(if looks || LOOKS.contains(&path) {
        Scope::Read
    } else if RUNS.contains(&path) || path.starts_with("/v1/") {
        Scope::Run
    } else if WRITES.contains(&path) || path.starts_with("/api/blobs/") {
        Scope::Write
    } else {
        Scope::Admin
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_need_what_they_do() {
        for (method, path, need) in [
            (Method::GET, "/", Need::Nothing),
            (Method::HEAD, "/", Need::Nothing),
            (Method::GET, "/openapi.json", Need::Nothing),
            (Method::OPTIONS, "/api/delete", Need::Nothing),
            (Method::GET, "/api/tags", Need::Scope(Scope::Read)),
            (Method::POST, "/api/show", Need::Scope(Scope::Read)),
            (Method::GET, "/metrics", Need::Scope(Scope::Read)),
            (Method::POST, "/api/chat", Need::Scope(Scope::Run)),
            (Method::POST, "/v1/messages/count_tokens", Need::Scope(Scope::Run)),
            (Method::GET, "/v1/models", Need::Scope(Scope::Read)),
            (Method::POST, "/api/blobs/sha256:00", Need::Scope(Scope::Write)),
            (Method::HEAD, "/api/blobs/sha256:00", Need::Scope(Scope::Read)),
            (Method::DELETE, "/api/delete", Need::Scope(Scope::Write)),
            (Method::POST, "/api/lode/prune", Need::Scope(Scope::Admin)),
            (Method::POST, "/api/of/tomorrow", Need::Scope(Scope::Admin)),
            (Method::GET, "/v2/a/manifests/b", Need::Registry(Scope::Read)),
            (Method::PUT, "/v2/a/manifests/b", Need::Registry(Scope::Write)),
            (Method::DELETE, "/v2/a/manifests/b", Need::Registry(Scope::Write)),
            (Method::POST, "/v2x", Need::Scope(Scope::Admin)),
        ] {
            assert_eq!(of(&method, path), need, "{method} {path}");
        }
    }
}
