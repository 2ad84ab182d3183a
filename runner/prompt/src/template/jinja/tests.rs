//! Tests that mean something else in Python: there a text is a sequence of characters.

use minijinja::value::{Value, ValueKind};

/// Whether a value has a length and items: texts and mappings have.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a test")]
pub(super) fn is_sequence(value: Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Bytes)
}

/// Whether a loop can go over a value; what is not defined has no items, and is one.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a test")]
pub(super) fn is_iterable(value: Value) -> bool {
    is_sequence(value.clone()) || matches!(value.kind(), ValueKind::Iterable | ValueKind::Undefined)
}
