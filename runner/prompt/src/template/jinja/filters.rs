//! Filters that print values as Python does, or that accept undefined values.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

use super::python;

/// `str`.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn string(value: Value) -> String {
    python::str(&value)
}

/// Joins items, or an attribute of each, with a separator.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn join(value: Value, between: Option<String>, attribute: Option<String>) -> Result<String, Error> {
    let mut parts = Vec::new();
    for item in value.try_iter()? {
        let item = attribute.as_ref().map_or_else(|| Ok(item.clone()), |name| item.get_attr(name))?;
        parts.push(if item.is_undefined() { String::new() } else { python::str(&item) });
    }
    Ok(parts.join(&between.unwrap_or_default()))
}

/// Returns the number of items; 0 for an undefined value.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn length(value: Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let none = || Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind()));
    value.len().ok_or_else(none)
}
