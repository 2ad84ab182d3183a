//! Fuzzes chat templates in Go's template language, rendered for any conversation. An input is a
//! template, optionally followed by a line `====` and a conversation as JSON.
#![no_main]

use vocabulary::chat_templates::is_go;

/// A comment that makes a text recognizable as a Go template and renders to nothing.
const COMMENT: &str = "{{/* Go */}}";

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let parts = lode_fuzz::parts(bytes);
    let Ok(source) = std::str::from_utf8(parts[0]) else { return };
    let source = if is_go(source) { source.to_owned() } else { format!("{COMMENT}{source}") };
    assert!(is_go(&source));
    lode_fuzz::render(&source, parts.get(1).copied().unwrap_or_default());
});
