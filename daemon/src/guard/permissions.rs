//! Who may make which call: what the table of routes says, for looking it up.

use std::collections::HashMap;

use axum::http::Method;

use super::scope::Scope;

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Everybody, with a key or without.
    Everybody,
    /// Who has a key with this scope, where there are keys.
    Scope(Scope),
}

/// Who may make which call.
#[derive(Clone, Debug)]
pub(crate) struct Permissions(HashMap<&'static str, Vec<Row>>);

/// A method, or every one, and who may call it.
type Row = (Option<Method>, Permission);

impl Permissions {
    /// Of a table's paths, as the router has them; no method is every one.
    pub(crate) fn of(table: impl Iterator<Item = (&'static str, Option<Method>, Permission)>) -> Self {
        let mut permissions: HashMap<&'static str, Vec<Row>> = HashMap::new();
        for (path, method, permission) in table {
            permissions.entry(path).or_default().push((method, permission));
        }
        Self(permissions)
    }

    /// Who may make this call; `None` where the table has no such one. `HEAD` is answered by what
    /// answers `GET`.
    pub(crate) fn find(&self, path: &str, method: &Method) -> Option<Permission> {
        let rows = self.0.get(path)?;
        let of = |wanted: &Method| rows.iter().find(|(own, _)| own.as_ref().is_none_or(|own| own == wanted));
        let found = of(method).or_else(|| (*method == Method::HEAD).then(|| of(&Method::GET)).flatten());
        found.map(|(_, permission)| *permission)
    }
}
