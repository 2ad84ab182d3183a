//! The permission that each call needs, looked up by route and method.

use std::collections::HashMap;

use axum::http::Method;

use super::scope::Scope;

/// The permission that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// None: every client may call it, with or without a key.
    Everybody,
    /// A key with this scope, if there are keys.
    Scope(Scope),
}

/// The permissions of all calls.
#[derive(Clone, Debug)]
pub(crate) struct Permissions(HashMap<&'static str, Vec<Row>>);

/// A method (`None` stands for every method) and the permission that it needs.
type Row = (Option<Method>, Permission);

impl Permissions {
    /// Builds the table from paths as the router has them; a missing method stands for every
    /// method.
    pub(crate) fn of(table: impl Iterator<Item = (&'static str, Option<Method>, Permission)>) -> Self {
        let mut permissions: HashMap<&'static str, Vec<Row>> = HashMap::new();
        for (path, method, permission) in table {
            permissions.entry(path).or_default().push((method, permission));
        }
        Self(permissions)
    }

    /// Returns the permission that a call needs; `None` if the table does not contain it. `HEAD`
    /// counts as `GET`.
    pub(crate) fn find(&self, path: &str, method: &Method) -> Option<Permission> {
        let rows = self.0.get(path)?;
        let of = |wanted: &Method| rows.iter().find(|(own, _)| own.as_ref().is_none_or(|own| own == wanted));
        let found = of(method).or_else(|| (*method == Method::HEAD).then(|| of(&Method::GET)).flatten());
        found.map(|(_, permission)| *permission)
    }
}
