//! What several fuzz targets share: files and a registry's storage in memory, the rendering of templates,
//! and inputs of several parts.

mod rendering;
mod shelf;
mod virtual_file;

pub use rendering::render;
pub use shelf::Shelf;
pub use virtual_file::VirtualFile;

/// Stands between the parts of an input, on a line of its own, so that seeds can be written and read by people.
pub const SEPARATOR: &str = "\n====\n";

/// The parts of an input that has several.
pub fn parts(bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR.as_bytes()) {
        parts.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    parts.push(rest);
    parts
}

/// An error that tells people something: every one of ours has a text.
pub fn assert_told(error: &dyn std::error::Error) {
    assert!(!error.to_string().trim().is_empty(), "an error without a text: {error:?}");
}
