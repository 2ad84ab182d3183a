//! Jinja tests that have another meaning in Python, where a string is a sequence of characters.

use minijinja::value::{Value, ValueKind};

/// Whether a value has a length and items, as strings and mappings do.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a test")]
pub(super) fn is_sequence(value: Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Bytes)
}

/// Whether a loop can iterate over a value. An undefined value counts, and has no items.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a test")]
pub(super) fn is_iterable(value: Value) -> bool {
    is_sequence(value.clone()) || matches!(value.kind(), ValueKind::Iterable | ValueKind::Undefined)
}
