//! Filters that print values as Python does, or know what is not defined.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};

use super::python;

/// `str`.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn string(value: Value) -> String {
    python::str(&value)
}

/// Items, or an attribute of each, with a text between them.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn join(value: Value, between: Option<String>, attribute: Option<String>) -> Result<String, Error> {
    let mut parts = Vec::new();
    for item in value.try_iter()? {
        let item = attribute.as_ref().map_or_else(|| Ok(item.clone()), |name| item.get_attr(name))?;
        parts.push(if item.is_undefined() { String::new() } else { python::str(&item) });
    }
    Ok(parts.join(&between.unwrap_or_default()))
}

/// How many items there are; none in what is not defined.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn length(value: Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let none = || Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind()));
    value.len().ok_or_else(none)
}
